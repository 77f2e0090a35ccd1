"""A folded network on disk: the same network again, or a refusal that says why."""

from __future__ import annotations

import random

import pytest
import torch

from steadyspike.deploy import DamagedFile, fold, load, load_extra, save
from tests.deploy.trained import trained


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model, x = trained("resnet19_tiny", norm="tebn")
    network = fold(model, x)
    path = save(network, tmp_path_factory.mktemp("folded") / "net.safetensors", {"classes": ["a", "b"]})
    return network, path, x


def test_round_trip_is_bit_equal(saved):
    network, path, x = saved
    again = load(path)
    assert torch.equal(again(x), network(x)) and load_extra(path) == {"classes": ["a", "b"]}
    assert list(again.graph.nodes) == list(network.graph.nodes)


def test_no_flipped_bit_is_accepted_with_other_content(saved, tmp_path):
    network, path, x = saved
    content, wanted = path.read_bytes(), network(x)
    generator, damaged = random.Random(0), tmp_path / "damaged.safetensors"
    header = int.from_bytes(content[:8], "little")
    places = [generator.randrange(8 + header) for _ in range(200)] + [
        generator.randrange(len(content)) for _ in range(100)
    ]
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << generator.randrange(8)
        damaged.write_bytes(flipped)
        try:
            again = load(damaged)
        except DamagedFile:
            continue
        assert torch.equal(again(x), wanted), f"byte {place} was flipped and believed"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_files_are_refused(saved, tmp_path, share):
    content = saved[1].read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DamagedFile, match="cut"):
        load(tmp_path / "cut.safetensors")


def test_foreign_files_are_refused(saved, tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3)}, tmp_path / "other.safetensors")
    with pytest.raises(DamagedFile, match="not of a folded network"):
        load(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="safetensors"):
        save(saved[0], tmp_path / "net.bin")
