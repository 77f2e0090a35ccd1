"""A folded network on disk: the same network again, or a refusal that says why."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torture.forge import forge, read_parts, write_forged

import steadyspike as ss
from steadyspike.deploy import DamagedFile, fold, load, load_extra, save
from steadyspike.deploy.ops import OPS
from steadyspike.deploy.schema import RULES
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


class PartOfTwo(nn.Module):
    """Spikes of two neurons with different V side by side, of which a third gets a part."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.late = ss.LIF(0.3), ss.LIF(0.5), ss.LIF(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.late(torch.cat([self.one(x), self.other(x)], 2)[:, :, 3:])


def test_a_part_of_spikes_side_by_side_is_saved(tmp_path):
    """The constant of this edge is a tensor with stride 0 in which torch sees no bytes."""
    x = 3 * torch.rand(4, 2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    network = fold(PartOfTwo().eval(), x)
    assert not network.proofs[0].silent
    assert torch.equal(load(save(network, tmp_path / "net.safetensors"))(x), network(x))


def test_no_flipped_bit_is_accepted_with_other_content(saved, tmp_path):
    network, path, x = saved
    content, expected = path.read_bytes(), network(x)
    generator, damaged = random.Random(0), tmp_path / "damaged.safetensors"
    header = int.from_bytes(content[:8], "little")
    places = [generator.randrange(8 + header) for _ in range(200)] + [
        generator.randrange(len(content)) for _ in range(100)
    ]
    for location in places:
        flipped = bytearray(content)
        flipped[location] ^= 1 << generator.randrange(8)
        damaged.write_bytes(flipped)
        try:
            again = load(damaged)
        except DamagedFile:
            continue
        assert torch.equal(again(x), expected), f"byte {location} was flipped and believed"


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


def test_forged_files_are_refused_in_one_line_or_run(saved, tmp_path):
    """The digest is recomputed: only the schema stands between these files and the network."""
    _, path, _ = saved
    content, tensors = read_parts(path)
    dice, forged, lines = random.Random(0), tmp_path / "forged.safetensors", []
    for _ in range(400):
        write_forged(forged, *forge(content, tensors, dice))
        try:
            network = load(forged)
            load_extra(forged)
        except DamagedFile as error:
            lines.append(str(error))
            continue
        node = network.graph.input
        dtype = next((n.tensors["weight"].dtype for n in network.graph if "weight" in n.tensors), torch.float32)
        lead = (1, 1) if node.timed else (1,)
        network(torch.zeros(*lead, *node.shape, dtype=dtype), None if node.timed else 1)
    assert len(lines) > 200
    assert all("\n" not in line and line.startswith("forged.safetensors") for line in lines)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(timesteps=10**9), "timesteps is 1000000000"),
        (lambda c: c.update(timesteps=0), "timesteps is 0"),
        (lambda c: c.update(output="nowhere"), "output 'nowhere'"),
        (lambda c: c.update(nodes=[]), "nodes"),
        (lambda c: c["nodes"][3].update(inputs=[c["nodes"][3]["name"]]), "not an earlier node"),
        (lambda c: c["nodes"][0].update(shape=[10**6] * 3), "shape"),
        (lambda c: c["nodes"][0].update(shape=[3, 16, 15]), "shape|computed"),
        (lambda c: c["nodes"][2].update(name=c["nodes"][1]["name"]), "used twice or is not a text"),
        (lambda c: c["nodes"][2].update(op="exec"), "unknown operation 'exec'"),
        (lambda c: c["nodes"][2].update(timed="yes"), "timed is true or false"),
        (lambda c: c.update(extra=[1]), "extra"),
        (lambda c: c.update(format="steadyspike folded network 2"), "this version reads"),
    ],
)
def test_what_a_description_may_not_say(saved, tmp_path, change, named):
    content, tensors = read_parts(saved[1])
    change(content)
    write_forged(tmp_path / "forged.safetensors", content, tensors)
    with pytest.raises(DamagedFile, match=named):
        load(tmp_path / "forged.safetensors")


def test_a_description_nested_too_deeply_is_refused(saved, tmp_path):
    from safetensors.torch import save_file

    from steadyspike.deploy.file import _digest

    text = "[" * 100_000
    save_file({}, tmp_path / "deep.safetensors", {"steadyspike": text, "digest": _digest(text, {})})
    with pytest.raises(DamagedFile, match="not JSON"):
        load(tmp_path / "deep.safetensors")


def test_every_operation_has_a_rule():
    assert RULES.keys() == OPS.keys() | {"input", "previous"}  # these two are not computed from values of the step


def test_more_steps_than_a_file_may_hold_are_not_saved(saved, tmp_path):
    import copy

    network = copy.deepcopy(saved[0])
    network.graph.timesteps = 10**6
    with pytest.raises(ValueError, match="at most"):
        save(network, tmp_path / "long.safetensors")
