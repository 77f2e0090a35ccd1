"""NIR graphs of other tools: every node, cycles, delays and graphs inside, spike by spike against NIR's equations."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import steadyspike as ss
from steadyspike.deploy import CannotFold
from steadyspike.deploy.energy import count_operations
from steadyspike.deploy.network import spikes_of_layers
from tests.deploy.nir_equations import simulate

nir = pytest.importorskip("nir")

from steadyspike.deploy.from_nir import from_nir  # noqa: E402
from steadyspike.deploy.to_nir import export_nir  # noqa: E402

DT = 1e-4
ZERO, TWO = np.array([0, 0]), np.array([2, 2])


def dice():
    return np.random.default_rng(0)


def full(shape, **constants):
    return {name: np.full(shape, float(value)) for name, value in constants.items()}


def lif(shape, **changes):
    return nir.LIF(**full(shape, **{"tau": 3e-4, "r": 1.7, "v_leak": 0, "v_threshold": 0.6, "v_reset": 0, **changes}))


def cuba(shape, **changes):
    start = {"tau_syn": 2e-4, "tau_mem": 5e-4, "r": 2, "v_leak": 0, "v_threshold": 0.5, "v_reset": 0, "w_in": 1.5}
    return nir.CubaLIF(**full(shape, **{**start, **changes}))


def integrate(shape, **changes):
    return nir.IF(**full(shape, **{"r": 1 / DT, "v_threshold": 1.1, "v_reset": 0, **changes}))


def chain(nodes, shape, extra=(), inside=None):
    """A graph of nodes in sequence, n0, n1, ...; extra: further edges; inside: further nodes."""
    named = {"input": nir.Input({"input": np.array(shape)}), **{f"n{i}": node for i, node in enumerate(nodes)}}
    out = shape if not nodes else list(nodes)[-1].output_type["output"]
    named["output"] = nir.Output({"output": np.array(out)})
    edges = [*itertools.pairwise(named), *extra]
    return nir.NIRGraph({**named, **(inside or {})}, edges, type_check=False)


def frames(shape, steps=12, samples=5, scale=3.0):
    return scale * torch.rand(steps, samples, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def assert_equal(graph, tmp_path, shape, late=(), dt=DT, quiet=False, **options):
    """Spikes of the network that is read from a file equal those of NIR's equations; the output to 1e-9."""
    nir.write(str(tmp_path / "net.nir"), graph)
    network = from_nir(tmp_path / "net.nir", dtype=torch.float64, **options)
    x = frames(shape)
    expected, fired = simulate(graph, x, dt, late)
    spikes, out = spikes_of_layers(network, x)
    assert fired.keys() == {name for name in spikes if not name.endswith(":synapse")}
    for name, s in fired.items():
        assert torch.equal(spikes[name], s), name
        assert quiet or 0.01 < s.double().mean() < 0.99, f"{name} decides nothing"
    assert torch.allclose(out, expected, atol=1e-9)
    stream = ss.stream(network)
    assert torch.equal(torch.stack([stream(frame) for frame in x]), out), "a stream differs from the batch call"
    return network


def linear(outs, ins, scale=0.5):
    return nir.Linear(dice().normal(0.1, scale, (outs, ins)))


FLAT = {
    "LIF, any gain": [linear(8, 6), lif(8)],
    "LIF, v_leak, v_reset": [linear(8, 6), lif(8, v_leak=0.2, v_reset=-0.1)],
    "LIF, only v_leak": [linear(8, 6), lif(8, v_leak=0.3)],
    "LIF, constants per neuron": [
        linear(8, 6),
        nir.LIF(np.linspace(1e-4, 9e-4, 8), np.linspace(0.5, 3, 8), np.linspace(-0.1, 0.1, 8), np.linspace(0.3, 1, 8),
                np.linspace(-0.2, 0.1, 8)),
    ],
    "IF": [linear(8, 6), integrate(8), linear(4, 8), integrate(4)],
    "IF, v_reset, r": [linear(8, 6), integrate(8, r=5000, v_reset=-0.3)],
    "CubaLIF": [linear(8, 6), cuba(8), linear(4, 8), cuba(4, v_leak=0.1, v_reset=-0.2)],
    "LI": [linear(8, 6), lif(8), linear(4, 8), nir.LI(**full(4, tau=5e-4, r=2, v_leak=0.1))],
    "CubaLI": [linear(8, 6), lif(8), nir.CubaLI(**full(8, tau_syn=2e-4, tau_mem=5e-4, r=2, v_leak=0.1, w_in=1.5))],
    "I": [linear(8, 6), lif(8), nir.I(np.full(8, 1234.0))],
    "Threshold": [linear(8, 6), nir.Threshold(np.full(8, 0.7)), linear(4, 8), lif(4)],
    "Threshold behind LI": [linear(8, 6), nir.LI(**full(8, tau=3e-4, r=1, v_leak=0)), nir.Threshold(np.full(8, 0.3))],
    "Scale": [nir.Scale(np.linspace(0.3, 0.9, 6)), lif(6), nir.Scale(np.full(6, 0.4)), lif(6, v_threshold=0.1)],
    "Affine": [nir.Affine(dice().normal(0, 0.4, (8, 6)), dice().normal(0, 0.3, 8)), lif(8)],
    "Delay": [linear(8, 6), lif(8), nir.Delay(np.full(8, 3 * DT)), linear(4, 8), lif(4)],
    "Delay of 0": [linear(8, 6), lif(8), nir.Delay(np.zeros(8)), linear(4, 8), lif(4)],
}  # fmt: skip


@pytest.mark.parametrize("name", FLAT)
def test_every_node(name, tmp_path):
    assert_equal(chain(FLAT[name], (6,)), tmp_path, (6,))


def conv(outs, ins, size, padding=1):
    return nir.Conv2d(size, dice().normal(0.03, 0.3, (outs, ins, 3, 3)), 1, padding, 1, 1, dice().normal(0, 0.1, outs))


@pytest.mark.parametrize("neuron", [lif, integrate], ids=["LIF", "IF"])
@pytest.mark.parametrize("pool", ["SumPool2d", "AvgPool2d"])
def test_the_shape_of_the_papers_image_network(neuron, pool, tmp_path):
    """Convolution, neuron, pool, convolution, neuron, pool, flatten, linear, neuron: NIR's N-MNIST network, smaller."""
    made = getattr(nir, pool)
    level = {"v_threshold": 1.0} if pool == "SumPool2d" else {"v_threshold": 0.4}
    nodes = [
        conv(4, 2, (8, 8)), neuron((4, 8, 8), **level), made(TWO, TWO, ZERO), conv(4, 4, (4, 4), "same"),
        neuron((4, 4, 4), **level), made(TWO, TWO, ZERO), nir.Flatten({"input": np.array([4, 2, 2])}, 0, -1),
        linear(5, 16), neuron(5, v_threshold=0.3),
    ]  # fmt: skip
    network = assert_equal(chain(nodes, (2, 8, 8)), tmp_path, (2, 8, 8))
    x = frames((2, 8, 8)).float()
    assert torch.equal(ss.deploy.compile(network.float())(x), network(x))


def test_signals(tmp_path):
    nodes = [
        nir.Conv1d(8, dice().normal(0, 0.5, (3, 2, 3)), 2, 1, 1, 1, dice().normal(0, 0.1, 3)), lif((3, 4), r=3.0),
        nir.Scale(np.full((3, 4), 0.5)), lif((3, 4), v_threshold=0.05),
    ]  # fmt: skip
    assert_equal(chain(nodes, (2, 8)), tmp_path, (2, 8))


def recurrent(neuron, inside=False):
    """The paper's Braille network: linear, neuron with all-to-all feedback, linear, neuron."""
    weights = nir.Affine(dice().normal(0, 0.4, (8, 8)), dice().normal(0, 0.1, 8))
    ahead, behind = nir.Affine(dice().normal(0.1, 0.5, (8, 6)), dice().normal(0, 0.2, 8)), linear(4, 8)
    if not inside:
        back = [("n1", "back"), ("back", "n1")]
        return chain([ahead, neuron(8), behind, neuron(4)], (6,), back, {"back": weights})
    nodes = {"input": nir.Input({"input": np.array([8])}), "lif": neuron(8), "w_rec": weights}
    nodes["output"] = nir.Output({"output": np.array([8])})
    loop = [("input", "lif"), ("lif", "w_rec"), ("w_rec", "lif"), ("lif", "output")]
    return chain([ahead, nir.NIRGraph(nodes, loop, type_check=False), behind, neuron(4)], (6,))


@pytest.mark.parametrize("neuron", [lif, cuba, integrate])
def test_a_cycle_is_a_step_loop(neuron, tmp_path):
    network = assert_equal(recurrent(neuron), tmp_path, (6,), late=[("n1", "back")])
    assert network.is_recurrent
    ss.deploy.save(network, tmp_path / "net.safetensors")
    x = frames((6,))
    assert torch.equal(ss.deploy.load(tmp_path / "net.safetensors")(x), network(x))


def test_a_graph_inside_equals_the_open_one(tmp_path):
    x = frames((6,))
    nir.write(str(tmp_path / "net.nir"), recurrent(cuba, inside=True))
    assert torch.equal(from_nir(tmp_path / "net.nir")(x), from_nir(recurrent(cuba))(x))


def test_feedback_over_two_layers_and_a_neuron_that_reads_itself(tmp_path):
    """The later layer's spikes reach the earlier layer one step late; n3 feeds itself without weights."""
    nodes = [linear(8, 6), lif(8), linear(4, 8), lif(4)]
    extra = [("n3", "back"), ("back", "n1"), ("n3", "n3")]
    graph = chain(nodes, (6,), extra, {"back": linear(8, 4)})
    assert_equal(graph, tmp_path, (6,), late=[("n3", "back"), ("n3", "n3")])


def test_an_output_behind_the_feedbacks_weights(tmp_path):
    """The output reads the weights of the loop: the neuron's spikes are late for all their readers."""
    named = {"input": nir.Input({"input": np.array([6])}), "in": linear(8, 6), "lif": lif(8), "w": linear(8, 8)}
    named["output"] = nir.Output({"output": np.array([8])})
    edges = [("input", "in"), ("in", "lif"), ("lif", "w"), ("w", "lif"), ("w", "output")]
    assert_equal(nir.NIRGraph(named, edges, type_check=False), tmp_path, (6,), late=[("lif", "w")])


def test_a_membrane_with_soft_reset_that_the_output_reads(tmp_path):
    """The potential itself is wanted, so the nodes of the soft reset are read one by one."""
    named = {
        "input": nir.Input({"input": np.array([6])}), "in": linear(8, 6),
        "li": nir.LI(**full(8, tau=2e-4, r=1, v_leak=0)),
        "fire": nir.Threshold(np.full(8, 0.5)), "back": nir.Scale(np.full(8, -0.5)),
        "output": nir.Output({"output": np.array([8])}),
    }  # fmt: skip
    edges = [("input", "in"), ("in", "li"), ("li", "fire"), ("fire", "back"), ("back", "li"), ("li", "output")]
    assert_equal(nir.NIRGraph(named, edges, type_check=False), tmp_path, (6,), late=[("li", "fire")])


@pytest.mark.parametrize("back", [-0.3, -1.4], ids=["another amount", "the threshold"])
def test_feedback_is_a_soft_reset_only_if_it_takes_the_threshold_off(back, tmp_path):
    """(1 - tau / dt) V / r = -1.4: any other Scale is a cycle like others."""
    named = {
        "input": nir.Input({"input": np.array([6])}), "li": nir.LI(**full(6, tau=3e-4, r=1, v_leak=0)),
        "fire": nir.Threshold(np.full(6, 0.7)), "back": nir.Scale(np.full(6, back)),
        "output": nir.Output({"output": np.array([6])}),
    }  # fmt: skip
    edges = [("input", "li"), ("li", "fire"), ("fire", "back"), ("back", "li"), ("fire", "output")]
    network = assert_equal(nir.NIRGraph(named, edges, type_check=False), tmp_path, (6,), late=[("fire", "back")])
    assert (network.graph["fire"].options["reset"] == "soft") == (back == -1.4)


def test_names_of_our_own_initial_potentials_mean_nothing_in_other_graphs(tmp_path):
    named = {
        "a_start": nir.Input({"input": np.array([6])}), "a_start_scale": nir.Scale(np.full(6, 2.0)), "lif": lif(6),
        "output": nir.Output({"output": np.array([6])}),
    }  # fmt: skip
    network = from_nir(nir.NIRGraph(named, list(itertools.pairwise(named)), type_check=False), dtype=torch.float64)
    named = {"input": named.pop("a_start"), **named}
    expected, _ = simulate(nir.NIRGraph(named, list(itertools.pairwise(named)), type_check=False), frames((6,)))
    assert torch.equal(network(frames((6,))), expected) and 0 < expected.mean() < 1


def named_twice():
    inner = chain([linear(6, 6)], (6,))
    return chain([lif(6), inner, lif(6)], (6,), inside={"n1.n0": lif(6)})


def test_a_cycle_through_a_delay_is_as_long_as_the_delay(tmp_path):
    nodes, extra = [linear(8, 6), lif(8)], [("n1", "wait"), ("wait", "back"), ("back", "n1")]
    inside = {"wait": nir.Delay(np.full(8, 2 * DT)), "back": linear(8, 8, 0.3)}
    network = assert_equal(chain(nodes, (6,), extra, inside), tmp_path, (6,))
    x = frames((6,))
    again = from_nir(export_nir(network, tmp_path / "again.nir"))
    assert torch.equal(again(x), network(x)), "the round trip of a recurrent network"


def test_without_time_constants_a_step_is_one_second(tmp_path):
    """sinabs writes IF nodes with r = 1, in units of a step."""
    nodes = [linear(8, 6), integrate(8, r=1.0), linear(4, 8), integrate(4, r=1.0)]
    assert_equal(chain(nodes, (6,)), tmp_path, (6,), dt=1.0)


def test_energy_of_a_recurrent_network_counts_its_feedback():
    network, x = from_nir(recurrent(lif)).float(), frames((6,)).float()
    spikes, _ = spikes_of_layers(network, x)
    report = count_operations(network, [x])
    counts = {layer.name: layer for layer in report.layers}
    assert counts["back"].acs == 8 * int(spikes["n1"][:-1].sum()), "the last step's spikes are not read again"


@pytest.mark.parametrize("task", ["compile", "integers", "onnx", "c"])
def test_programs_that_need_all_steps_at_once_refuse_a_cycle_by_name(task, tmp_path):
    network = from_nir(recurrent(lif)).float()
    from steadyspike.deploy.integers import IntegerNetwork
    from steadyspike.deploy.standalone.c_file import export_c

    tasks = {
        "compile": lambda: ss.deploy.compile(network), "integers": lambda: IntegerNetwork(network),
        "onnx": lambda: ss.deploy.export_onnx(network, tmp_path / "one.onnx", streaming=True),
        "c": lambda: export_c(network, tmp_path, "net"),
    }  # fmt: skip
    with pytest.raises(CannotFold, match="n1:before: the network is recurrent"):
        tasks[task]()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (chain([linear(8, 6), lif(8), nir.Delay(np.full(8, 1.5 * DT))], (6,)), "n2: a delay of 1.5 time steps"),
        (chain([linear(8, 6), nir.Delay(np.linspace(0, 7 * DT, 8))], (6,)), "n1: the delays of a layer"),
        (chain([linear(6, 6), linear(6, 6)], (6,), [("n1", "n0")]), "cycle without a neuron"),
        (chain([linear(8, 6), lif(8, tau=1e-5)], (6,)), "n1: tau must be at least one time step"),
        (chain([linear(8, 6), lif(8, v_threshold=-1)], (6,)), "n1: its threshold is not above its reset"),
        (chain([conv(2, 2, (4, 4)), lif((2, 4, 4)), nir.Threshold(dice().random((2, 4, 4)))], (2, 4, 4)),
         "n2: it has one threshold per neuron"),
        (chain([linear(8, 7), lif(8)], (6,)), r"n0: weights \[8, 7\] do not match an input \[6\]"),
        (chain([conv(2, 3, (4, 4)), lif((2, 4, 4))], (2, 4, 4)), "n0: weights .* do not match an input"),
        (chain([nir.Scale(np.ones(3)), lif(6)], (6,)), "n0: its constants do not match an input"),
        (chain([linear(1, 6), lif(6)], (6,), [("input", "n1")]), r"n1: .* different shapes: \[1\] and \[6\]"),
        (named_twice(), "n1.n0: two nodes of the NIR graph have this name"),
        (nir.NIRGraph({"a\n\x1b[31m": nir.Output({"output": np.array([6])})}, [], type_check=False),
         r"a\\n\\x1b\[31m: no node feeds it"),
    ],
    ids=["half a step", "delays differ", "no neuron", "tau", "threshold", "per neuron", "linear", "conv", "scale",
         "sum", "two of a name", "a name of two lines"],
)  # fmt: skip
def test_what_is_not_read_is_one_line_with_the_nodes_name(graph, message):
    with pytest.raises(CannotFold, match=message) as error:
        from_nir(graph)
    assert "\n" not in str(error.value)


def test_an_unknown_node_is_named_with_its_place():
    class Sigmoid:
        pass

    graph = chain([linear(8, 6), lif(8)], (6,))
    graph.nodes["n1"] = Sigmoid()
    with pytest.raises(CannotFold, match=r"n1 \(after n0\): this importer does not read the NIR node Sigmoid"):
        from_nir(graph)


@pytest.mark.peer
def test_the_papers_braille_network(tmp_path):
    """The recurrent CubaLIF network of the NIR paper, as the Norse package carries it: 12, 38 (recurrent), 7."""
    norse = find_spec("norse")
    if norse is None or norse.origin is None:
        pytest.skip("norse is not installed; it carries braille.nir")
    path = Path(norse.origin).parent / "torch" / "utils" / "test" / "braille.nir"
    graph = nir.read(path)
    x = (frames((12,), steps=256, samples=16, scale=1.0) < 0.15).double()  # events of the paper's 12 taxels
    expected, fired = simulate(graph, x, late=[("lif1.lif", "lif1.w_rec")])
    spikes, out = spikes_of_layers(from_nir(path, dtype=torch.float64), x)
    assert torch.equal(out, expected) and torch.equal(spikes["lif1.lif"], fired["lif1.lif"])
    assert all(0.01 < s.double().mean() < 0.9 for s in fired.values())
