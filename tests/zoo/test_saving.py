"""`save_pretrained` and `load`: what comes back is what was saved, and hostile folders are one line of error."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike import models
from steadyspike.data.errors import DataError
from steadyspike.disk.checksum import file_sha256
from steadyspike.disk.sealed import BLANK, seal
from steadyspike.train import RunError
from steadyspike.train.files.folder import RunFolder, run_folder
from steadyspike.train.files.weights import save_weights
from steadyspike.zoo.saving import rounded

NETWORKS: dict[str, dict[str, Any]] = {
    "cnn7_tiny": {},
    "resnet19_tiny": {"neuron": "plif", "norm": "tebn", "timesteps": 3},
    "sew_resnet34_tiny": {"neuron": ss.nn.neuron_factory("lif", threshold=0.7, tau=3.0), "connect": "iand"},
    "ms_resnet_tiny": {"layers": (1, 1, 1, 1), "width": 0.0625},
    "spikformer_tiny": {"neuron": ss.PLIF},
    "qkformer_tiny": {"tie_stream_threshold": True},
    "ems_resnet10_ee_small": {},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    """Outputs are equal to the last bit, whatever the family, neuron and norm, and whatever was learned since."""
    torch.manual_seed(0)
    model = models.create(name, num_classes=3, **{"timesteps": 2, **NETWORKS[name]})
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    mean, std = [0.5] * model.in_channels, [0.2] * model.in_channels
    folder = ss.save_pretrained(model, tmp_path / "net", classes=["a", "b", "c"], mean=mean, std=std)
    assert {path.name for path in folder.iterdir()} == {"weights.safetensors", "network.json", "README.md"}
    net = ss.load(folder)
    assert net.classes == ("a", "b", "c") and not net.model.training and net.description.input.mean == mean
    x = torch.rand(2, model.in_channels, *net.description.input.size)
    with torch.no_grad():
        expected, got = model.eval()(x), net.model(x)
    pairs = zip(expected, got) if isinstance(expected, list) else [(expected, got)]
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_saved_network_is_saved_again_and_changes_its_classes(tmp_path: Path) -> None:
    model = models.create("cnn7_tiny", num_classes=3, timesteps=2).to(memory_format=torch.channels_last)
    first = ss.load(ss.save_pretrained(model, tmp_path / "first", classes=["a", "b", "c"], half=True))
    again = ss.load(ss.save_pretrained(first, tmp_path / "again"))
    x = torch.rand(1, 2, 16, 16)
    with torch.no_grad():
        assert torch.equal(first.model(x), again.model(x))
    other = ss.load(tmp_path / "first", num_classes=7)
    assert other.classes == () and other.model(x).shape == (2, 1, 7)
    kept, new = first.model.state_dict(), other.model.state_dict()
    changed = [name for name in kept if kept[name].shape != new[name].shape]
    assert changed and all(name.startswith("head") for name in changed)
    assert all(torch.equal(kept[name], new[name]) for name in kept if name not in changed)


def test_a_fine_tuned_network_of_load_is_saved(tmp_path: Path) -> None:
    """With its preprocessing and its new classes; the data set of the old weights is not taken for its own."""
    tuned = ss.load("digits-cnn7", num_classes=3)
    assert tuned.num_classes == 3 and tuned.data.num_classes == 10
    with torch.no_grad():
        next(tuned.model.parameters()).mul_(1.5)
    again = ss.load(ss.save_pretrained(tuned, tmp_path / "tuned", classes=["a", "b", "c"]))
    assert again.classes == ("a", "b", "c") and again.num_classes == 3 and "3 classes: a, b, c" in again.card
    assert again.description.input.mean == tuned.description.input.mean != None  # noqa: E711
    assert "optimizer" not in again.card, "the recipe of the old weights is not how these were trained"
    x = torch.rand(1, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(tuned.model(x), again.model(x))
    with pytest.raises(RunError, match="does not record the data set"):
        _ = again.data
    unnamed = ss.load(ss.save_pretrained(ss.load(tmp_path / "tuned", num_classes=2), tmp_path / "unnamed"))
    assert unnamed.classes == () and "2 classes" in repr(unnamed) and "2 classes\n" in unnamed.card


def test_another_number_of_steps_is_saved(tmp_path: Path) -> None:
    net = ss.load("digits-cnn7", sha256=ss.load("digits-cnn7").description.weights_sha256.upper())
    net.model.timesteps = 6  # type: ignore[assignment]
    for number, given in enumerate((net, net.model)):
        again = ss.load(ss.save_pretrained(given, tmp_path / str(number)))
        assert again.timesteps == 6 and again.model(torch.rand(1, 1, 16, 16)).shape == (6, 1, 10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_network_in_another_precision_is_saved_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = models.create("cnn7_tiny", num_classes=3, timesteps=2).to(dtype)
    state = ss.load(ss.save_pretrained(model, tmp_path / "net")).model.state_dict()
    assert next(model.parameters()).dtype == dtype, "the given network does not change"
    assert all(torch.equal(state[name], t.to(state[name].dtype)) for name, t in model.state_dict().items())


def test_a_compiled_network_is_saved_as_the_network_in_it(tmp_path: Path) -> None:
    model = models.create("cnn7_tiny", num_classes=3, timesteps=2)
    state = ss.load(ss.save_pretrained(torch.compile(model), tmp_path / "net")).model.state_dict()  # type: ignore[arg-type]
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"classes": ["a"]}, RunError, "1 names of classes for 3"),
    ({"classes": "abc"}, TypeError, "must be a list"),
    ({"mean": [0.5, 0.5]}, RunError, "mean and std"),
    ({"mean": [0.5], "std": [0.5]}, RunError, "2 numbers, one per channel"),
    ({"mean": [0.5, 0.5], "std": [0.5, 0.0]}, RunError, r"std\.1"),
    ({"mean": [0.5, float("nan")], "std": [0.5, 0.5]}, RunError, r"mean\.1"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_after_an_error_there_is_no_folder(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        ss.save_pretrained(models.create("cnn7_tiny", num_classes=3), tmp_path / "a" / "net", **options)
    assert not (tmp_path / "a" / "net").exists()


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    model = models.create("cnn7_tiny", num_classes=3)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    (tmp_path / "net").mkdir()
    with pytest.raises(RunError, match="not finite"):
        ss.save_pretrained(model, tmp_path / "net")
    assert list((tmp_path / "net").iterdir()) == []


def test_class_names_and_scaling_of_a_run_are_not_ignored(tmp_path: Path) -> None:
    run = ss.load_run(run_folder("digits-cnn7"))
    with pytest.raises(RunError, match="those of its data set"):
        ss.save_pretrained(run, tmp_path / "net", classes=list("0123456789"))


def test_a_folder_is_preferred_to_a_network_of_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = ss.save_pretrained(models.create("cnn7_tiny", num_classes=3), "digits-cnn7")
    assert ss.load(folder).num_classes == ss.load("digits-cnn7").num_classes == 3


def test_rounding_keeps_constants_and_what_float16_cannot_hold() -> None:
    state = {"w": torch.tensor([[1.0001]]), "v": torch.tensor([1.0001]), "large": torch.full((2, 2), 1e6)}
    small = rounded(state)
    assert {name: t.dtype for name, t in small.items()} == {"w": torch.half, "v": torch.float, "large": torch.float}


def test_rounding_of_the_largest_layers_stops_at_a_size() -> None:
    state = {"small": torch.rand(2, 2), "larger": torch.rand(8, 8), "largest": torch.rand(9, 9)}  # 16 + 256 + 324 bytes
    for until, halves in ((596, set()), (595, {"largest"}), (434, {"largest"}), (433, {"largest", "larger"})):
        assert {name for name, t in rounded(state, until).items() if t.dtype == torch.half} == halves


def test_networks_that_need_code_are_refused(tmp_path: Path) -> None:
    for number, model in enumerate(
        (
            nn.Sequential(nn.Flatten(), nn.Linear(4, 2), ss.LIF()),
            models.create("cnn7_tiny", neuron=partial(ss.LIF, tau=1.5)),
            models.create("cnn7_tiny", init=lambda net: None),
        )
    ):
        with pytest.raises(RunError, match="needs its code"):
            ss.save_pretrained(model, tmp_path / str(number))


def test_a_recording_for_a_network_that_does_not_describe_frames(saved: Path) -> None:
    net = ss.load(forged(saved, lambda d: d["input"].update(timesteps=2)))
    (saved / "events.bin").write_bytes(bytes([3, 3, 128, 0, 1]))
    with pytest.raises(DataError, match="does not record how events become frames"):
        net.predict(saved / "events.bin")


def test_a_network_with_a_replaced_layer_is_not_what_it_says(tmp_path: Path) -> None:
    model = models.create("cnn7_tiny", num_classes=3)
    model.head.register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(RunError, match="was a layer of it replaced"):
        ss.save_pretrained(model, tmp_path / "net")


def test_a_network_with_code_of_its_own_can_still_be_pickled() -> None:
    class Local(ss.LIF):
        """Cannot be pickled by name."""

    plain = models.create("cnn7_tiny", neuron=lambda channels=None, size=None: ss.LIF())
    assert pickle.loads(pickle.dumps(plain.made_of)) is None
    assert copy.deepcopy(models.create("cnn7_tiny", neuron=Local)).made_of is not None


def forged(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A folder whose description was changed, with a checksum that is right again."""
    run = RunFolder(folder)
    content = run.read_json("network.json")
    change(content)
    run.write_json("network.json", content)
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return ss.save_pretrained(models.create("resnet19_tiny", num_classes=3, timesteps=2), tmp_path / "net")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["recipe"]["model"].update(name="os:system"), "is code"),
        (lambda d: d["recipe"]["data"].update(name="evil:make"), "is code"),
        (lambda d: d["recipe"]["model"].update(width=1e9), "less than or equal to 100"),
        (lambda d: d["recipe"]["model"].update(width=99), "do not belong to the described network"),
        (lambda d: d["recipe"]["model"]["options"].update(layers=[10**9, 1, 1]), "more blocks"),
        (lambda d: d["recipe"]["model"]["options"].update(layers=[-1, 1, 1]), "cannot be built"),
        (lambda d: d["recipe"]["data"].update(timesteps=10**9), "more than 10000"),
        (lambda d: d["recipe"].update(surprise={}), "unknown key"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d.update(num_classes=10**6), "do not belong to the described network"),
        (lambda d: d.update(num_classes=10**12), "num_classes"),
        (lambda d: d.update(classes=[1, 2, 3]), "classes"),
        (lambda d: d.update(classes=["a"]), "1 names of classes for 3"),
        (lambda d: d["input"].update(mean=[0.5], std=[0.5]), "mean and std"),
        (lambda d: d["input"].update(mean=[float("nan")] * 3, std=[0.5] * 3), r"mean\.0"),
        (lambda d: d["input"].update(mean=[0.5] * 3, std=[0.0] * 3), r"std\.0"),
        (lambda d: d["input"].update(axes="../x"), "axes must be one of"),
        (lambda d: d["input"].update(timesteps=2, frames={"surprise": 1}), "frames are not settings"),
        (lambda d: d["input"].update(timesteps=2, frames={"timesteps": 10**9}), "frames are not settings"),
        (lambda d: d.update(format="steadyspike network 99"), "format"),
        (
            lambda d: d["input"].update(size=[10**9, 10**9]),
            "do not belong to the described network|cannot be built|size",
        ),
        (lambda d: d["input"].update(size=["a", 2]), r"input\.size"),
        (lambda d: d.update(weights_sha256="0" * 64), "not the same weights"),
        (lambda d: d.update(recipe={"base": "demo"}), "base"),
    ],
)
def test_a_forged_description_is_refused(saved: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    with pytest.raises(RunError, match=message) as refused:
        ss.load(forged(saved, change))
    assert "\n" not in str(refused.value)


def test_forged_weights_are_refused(saved: Path) -> None:
    """Right checksums everywhere, and tensors of another network, or values that do not fit a tensor."""
    weights = RunFolder(saved).weights
    for state in ({"w": torch.zeros(3)}, {}, {"stem.conv_norm.conv.weight": torch.zeros(1, 1, 1, 1)}):
        save_weights(weights, state, {})
        forged(saved, lambda d: d.update(weights_sha256=file_sha256(weights)))
        with pytest.raises(RunError, match=r"do not belong to the described network|more blocks"):
            ss.load(saved)
    for change, message in (
        (lambda t: t.to(torch.complex64), "is of torch.complex64"),
        (lambda t: t.to(torch.int64), "is of torch.int64"),
        (lambda t: torch.full_like(t, float("nan")), "not finite"),
        (lambda t: torch.full_like(t, 1e300, dtype=torch.float64), "not finite"),
    ):
        state = models.create("resnet19_tiny", num_classes=3, timesteps=2).state_dict()
        state["stem.conv_norm.conv.weight"] = change(state["stem.conv_norm.conv.weight"])
        save_weights(weights, state, {})
        forged(saved, lambda d: d.update(weights_sha256=file_sha256(weights)))
        with pytest.raises(RunError, match=message):
            ss.load(saved)
    header = b'{"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]},'
    header += b'"__metadata__":{"steadyspike":"' + json.dumps({"checksum": BLANK}).replace('"', '\\"').encode() + b'"}}'
    weights.write_bytes(seal(len(header).to_bytes(8, "little") + header))
    forged(saved, lambda d: d.update(weights_sha256=file_sha256(weights)))
    with pytest.raises(RunError, match=r"damaged.*again"):
        ss.load(saved)
    weights.write_bytes(b"\xff" * 64)
    forged(saved, lambda d: d.update(weights_sha256=file_sha256(weights)))
    with pytest.raises(RunError, match=r"damaged.*copy or download"):
        ss.load(saved)
    weights.unlink()
    with pytest.raises(RunError, match="is missing"):
        ss.load(saved)


def test_damaged_and_oversized_descriptions_are_refused(saved: Path) -> None:
    path = saved / "network.json"
    text = path.read_text()
    other = text.replace("resnet19", "resnet34")
    for content in (text[:-40], "[" * 100_000, "{}", "null", other, " " * (1 << 20) + text):
        path.write_text(content)
        with pytest.raises(RunError):
            ss.load(saved)
    path.unlink()
    with pytest.raises(RunError, match=r"has no network\.json"):
        ss.load(saved)


def test_names_with_markup_stay_text_in_the_card(tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>", "a | b\n# heading", "[bold]\x1b[31m"]
    model = models.create("cnn7_tiny", num_classes=3)
    net = ss.load(ss.save_pretrained(model, tmp_path / "net", classes=names, about="see [link](javascript:x)"))
    assert net.classes == tuple(names)
    assert "<img" not in net.card and "\n# heading" not in net.card and "\x1b" not in net.card
    assert "[link](" not in net.card.replace("\\[", "")


def test_wrong_places(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"has no network\.json"):
        ss.load(tmp_path / "empty")
    with pytest.raises(RunError, match="neither a folder nor a network"):
        ss.load("cifar1-resnet19")
    with pytest.raises(RunError, match="did you mean digits-cnn7"):
        ss.load("DIGITS-cnn7")
    with pytest.raises(RunError, match="neither a folder nor a network"):
        ss.load("x" * 5000)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="is a file"):
        ss.save_pretrained(models.create("cnn7_tiny"), tmp_path / "file")
    with pytest.raises(TypeError, match="got str"):
        ss.save_pretrained("digits-cnn7", tmp_path / "text")  # type: ignore[arg-type]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        ss.save_pretrained(models.create("cnn7_tiny"), tmp_path / "full")
