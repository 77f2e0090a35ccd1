"""The table of neurons by name, with their published settings; a network's argument ``neuron=`` chooses from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import nn

from steadyspike.core.spec import Reset
from steadyspike.core.surrogate import ArcTan, Rect, Triangle
from steadyspike.nn.factory import NeuronLike, Placeable, Site
from steadyspike.nn.initial_potential import LearnedInit
from steadyspike.nn.lif import LIF
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.diet import DIET
from steadyspike.nn.neurons.ilif import ILIF
from steadyspike.nn.neurons.integrate import IF
from steadyspike.nn.neurons.ltmd import LTMD
from steadyspike.nn.neurons.mpbn import MPBN
from steadyspike.nn.neurons.mpd import MPDAGL
from steadyspike.nn.neurons.mps import MPS
from steadyspike.nn.neurons.plif import PLIF
from steadyspike.nn.neurons.rate import RateLIF
from steadyspike.nn.neurons.readout import Readout
from steadyspike.nn.neurons.relu import ReLU
from steadyspike.nn.neurons.scan_options import ScanOptions

IMP_SCOPES = ("neuron", "channel", "space")
IMP_OPTIONS = ("imp_scope", "imp_range")


class NeuronInfo(NamedTuple):
    """An entry of `NEURONS`: a class, the options of the published neuron, and a one-line summary."""

    build: Callable[..., Neuron]
    options: Mapping[str, Any]
    summary: str


def _retains(share: float) -> float:
    """Returns the tau of a neuron that keeps the given share of U per step."""
    return 1 / (1 - share)


def _baseline(retention: float, **options: Any) -> dict[str, Any]:
    """Options of a typical baseline LIF: fixed constants, unscaled input, M > V, hard reset, triangle gradient "as"."""
    common = {
        "threshold": 1.0,
        "tau": _retains(retention),
        "gradient": "as",
        "surrogate": Triangle(1.0),
        "reset": "hard",
        "init": "zero",
        "learn": (),
        "strict": True,
        "decay_input": False,
    }
    return {**common, **options}


_IMP = {"gradient": "as", "surrogate": ArcTan(2.0), "reset": "hard", "init": "imp", "learn": ()}
_SEW = {"gradient": "as", "surrogate": ArcTan(2.0), "reset": Reset("hard", detach=True), "init": "zero", "learn": ()}
_BNTT = {"gradient": "rs", "surrogate": Triangle(1.0, scale=0.3), "reset": Reset("soft", "product")}

NEURONS: dict[str, NeuronInfo] = {
    "lif": NeuronInfo(LIF, {}, "the paper's: MP-Init, TrSG, learned V and tau"),
    "if": NeuronInfo(IF, {}, "the paper's without leak"),
    "plif": NeuronInfo(PLIF, {}, "learned tau (Fang et al., 2021)"),
    "ltmd": NeuronInfo(LTMD, {}, "learned V = tanh(w) (Wang et al., 2022)"),
    "diet": NeuronInfo(DIET, {}, "learned raw V and retention (Rathi and Roy, 2023)"),
    "imp": NeuronInfo(IF, _IMP, "learned U[0] per neuron (Shen et al., 2024); tau=... for a leak"),
    "mps": NeuronInfo(MPS, {}, "smoothed potential (Ding et al., 2025; unverified)"),
    "mpbn": NeuronInfo(MPBN, {}, "batch norm on the membrane (Guo et al., 2023)"),
    "rate": NeuronInfo(RateLIF, {}, "rate-based backpropagation (used by EAGD)"),
    "ilif": NeuronInfo(ILIF, {}, "integer training, binary inference (Luo et al., 2024)"),
    "mpd": NeuronInfo(MPDAGL, {}, "MPD-AGL: width follows the membrane (Jiang et al., 2025)"),
    "readout": NeuronInfo(Readout, {}, "integrates and never spikes: a network's output"),
    "relu": NeuronInfo(ReLU, {}, "no neuron: an ordinary network, whose weights start a spiking one"),
    "lif-tdbn": NeuronInfo(
        LIF, _baseline(0.25, threshold=0.5, surrogate=Rect(1.0)), "tdBN's LIF (Zheng et al., 2021; V 0.5 unverified)"
    ),
    "lif-tet": NeuronInfo(LIF, _baseline(0.5), "TET's LIF (Deng et al., 2022)"),
    "lif-tebn": NeuronInfo(LIF, _baseline(0.25), "TEBN's LIF (Duan et al., 2022)"),
    "lif-tab": NeuronInfo(LIF, _baseline(0.9), "TAB's LIF (Jiang et al., 2024)"),
    "lif-ms": NeuronInfo(
        LIF,
        _baseline(0.25, threshold=0.5, surrogate=Rect(1.0), reset=Reset("hard", detach=True)),
        "MS-ResNet's LIF (Hu et al., 2021)",
    ),
    "if-sew": NeuronInfo(IF, _SEW, "SEW-ResNet's IF (Fang et al., 2021)"),
    "lif-bntt": NeuronInfo(LIF, _baseline(0.95, **_BNTT), "BNTT's LIF (Kim and Panda, 2021)"),
}


@dataclass(frozen=True)
class NeuronSpec:
    """A neuron by name with options; a network builds it once per site: ``neuron_factory("lif", tau=4.0)``.

    channelwise: one set of constants per channel of the site.

    The option ``init="imp"`` is a learned U[0] of the site's shape. With it, ``imp_scope`` is "neuron" (C, H, W),
    "channel" (C, 1, 1) or "space" (1, H, W), and ``imp_range`` is (low, high) of its uniform start.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    channelwise: bool = False

    def __post_init__(self) -> None:
        if self.name not in NEURONS:
            raise ValueError(f"unknown neuron {self.name!r}; known: {', '.join(NEURONS)}")
        valid = option_names(self.name)
        for option in self.options:
            if option not in valid:
                raise TypeError(f"neuron {self.name!r} has no option {option!r}; known: {', '.join(valid)}")
        # Builds a small layer, so that a wrong option raises an error here and not later inside a network.
        self.at(Site(channels=2, size=(2, 2), timesteps=2))

    def at(self, site: Site) -> Neuron:
        """Returns a new layer for ``site``."""
        info = NEURONS[self.name]
        options = {**info.options, **self.options}
        build = info.build
        if self.name == "imp":
            _require_learned(options["init"])
            if options.pop("tau", None) is not None:
                build, options = LIF, {**options, "learn": (), **self.options}
        imp = {option: options.pop(option) for option in IMP_OPTIONS if option in options}
        if options.get("init") == "imp":
            shape = imp_shape(site, imp.get("imp_scope", "neuron"))
            options["init"] = LearnedInit(shape, *imp.get("imp_range", (0.4, 0.6)))
        elif imp:
            raise TypeError(f"{', '.join(imp)} only work with init='imp' (a learned U[0]); add it or leave them out")
        if build is MPBN:
            options.setdefault("features", site.channels)
        if self.channelwise:
            options["channels"] = site.channels
        return build(**options)

    def with_threshold(self, threshold: float) -> NeuronSpec:
        """Returns the same neuron with another starting V."""
        return replace(self, options={**self.options, "threshold": threshold})

    def __repr__(self) -> str:
        text = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"neuron_factory({self.name!r}{text}{', channelwise=True' if self.channelwise else ''})"


def neuron(name: str, **options: Any) -> Neuron:
    """Builds a neuron layer from its name (`NEURONS`) and options of its class: ``neuron("plif", tau=4.0)``.

    A network builds its own neuron layers: give it the name or a `neuron_factory` instead of a layer.
    """
    spec = NeuronSpec(name, options)
    missing = {"mpbn": "features", "imp": "init"}.get(name)
    if missing is not None and missing not in options:
        example = {"features": "features=64", "init": "init=ss.LearnedInit((64, 8, 8))"}[missing]
        raise TypeError(f"neuron {name!r} depends on the size of its input: give {missing}, such as {example}")
    if options.get("init") == "imp":
        raise TypeError("a learned U[0] depends on the size of its input: give init=ss.LearnedInit((64, 8, 8))")
    return spec.at(Site(channels=1))


def neuron_factory(name: str, *, channelwise: bool = False, **options: Any) -> NeuronSpec:
    """A neuron by name with options, which a network builds at each of its sites; see `NeuronSpec`."""
    return NeuronSpec(name, options, channelwise)


def as_neuron(given: str | NeuronLike, /, **options: Any) -> NeuronLike:
    """Returns the factory of a network's neurons: made from a name and options, or ``given`` itself after a check."""
    if isinstance(given, str):
        return neuron_factory(given, **options)
    if options:
        raise TypeError(f"options {', '.join(options)} need a neuron by name, got {given!r}; set them there instead")
    if isinstance(given, Placeable):
        return given
    if isinstance(given, nn.Module):
        raise TypeError(
            "neuron is a layer, but a network needs a new one at each position: pass the class or a factory, "
            "such as ss.LIF, functools.partial(ss.LIF, tau=1.5) or ss.nn.neuron_factory('plif')"
        )
    if not callable(given):
        raise TypeError(f"neuron must be a name ({', '.join(NEURONS)}), a class or a factory, got {given!r}")
    return given


def option_names(name: str) -> list[str]:
    """Returns the names of the options that `neuron` accepts for a neuron."""
    parameters = inspect.signature(NEURONS[name].build).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    if len(names) < len(parameters):
        names += ScanOptions.__annotations__
    return [*names, *(["tau"] if name == "imp" else []), *IMP_OPTIONS]


def imp_shape(site: Site, scope: str = "neuron") -> tuple[int, ...]:
    """Returns the shape of IMP's learned potential at ``site``."""
    if scope not in IMP_SCOPES:
        raise ValueError(f"unknown imp_scope {scope!r}; known: {', '.join(IMP_SCOPES)}")
    if site.size is None:
        raise ValueError(
            "IMP learns one potential per neuron and needs the layer's spatial size, which this network does not have; "
            "build the network for a fixed input size"
        )
    channels = 1 if scope == "space" else site.channels
    return (channels, *((1,) * len(site.size) if scope == "channel" else site.size))


def _require_learned(init: Any) -> None:
    if init != "imp" and not isinstance(init, LearnedInit):
        raise ValueError(
            f"IMP is a learned U[0], and a layer has one initial potential, so init={init!r} cannot be added: "
            "leave init out, or use neuron 'if' instead of 'imp'"
        )
