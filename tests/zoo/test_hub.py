"""Uploads to a hub on this computer, and downloads from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import steadyspike as ss
from steadyspike import models
from steadyspike.train import RunError
from tests.zoo.fake_hub import FakeHub

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub, and a user who has downloaded nothing yet."""
    server = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_fake")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


def push(seed: int) -> str:
    torch.manual_seed(seed)
    model = models.create("cnn7_tiny", num_classes=3, timesteps=2)
    return ss.push_to_hub(model, "owner/net", classes=["a", "b", "c"], half=True)


def output(net: ss.zoo.Pretrained) -> torch.Tensor:
    with torch.no_grad():
        return net.model(torch.ones(1, 2, 16, 16))


def test_a_network_goes_to_a_hub_and_comes_back(hub: FakeHub) -> None:
    location = push(0)
    assert location == f"hf://owner/net@{hub.heads['owner/net']}"
    assert set(hub.commits["owner/net"][hub.heads["owner/net"]]) == {"README.md", "network.json", "weights.safetensors"}
    net = ss.load(location)
    assert net.classes == ("a", "b", "c") and net.timesteps == 2 and not net.model.training
    assert torch.equal(output(ss.load("hf://owner/net")), output(net))
    hub.shutdown()
    hub.server_close()
    assert torch.equal(output(ss.load(location)), output(net)), "what is pinned and here needs no network"


def test_weights_that_change_on_the_hub_are_refused(hub: FakeHub) -> None:
    push(0)
    first = ss.load("hf://owner/net")
    push(1)
    with pytest.raises(RunError, match="have changed on the hub") as refused:
        ss.load("hf://owner/net")
    expected = str(refused.value).partition("sha256='")[2][:64]
    assert not torch.equal(output(ss.load("hf://owner/net", sha256=expected)), output(first))
    with pytest.raises(RunError, match="not the same weights"):
        ss.load("hf://owner/net", sha256="0" * 64)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"weights.safetensors": b"x"}, "has no network.json"),
        ({"network.json": b"{}" + b" " * (1 << 20)}, "1048576 are allowed"),
        ({"network.json": b"{}", "weights.safetensors": b"x", "steadyspike.py": b"print('run')"}, "damaged"),
    ],
)
def test_a_hostile_repository_is_one_line(hub: FakeHub, tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    hub.commit("owner/net", files)
    with pytest.raises(RunError, match=message):
        ss.load("hf://owner/net")
    assert not list(tmp_path.rglob("steadyspike.py")), "files of other names are not even fetched"


@pytest.mark.parametrize(
    "name", ["owner", "../../etc", "owner/..", "owner/net@a b", "owner/missing", "owner/net@main/x"]
)
def test_wrong_places_are_refused(hub: FakeHub, name: str) -> None:
    with pytest.raises(RunError):
        ss.load(f"hf://{name}")
