"""`Neuron`: the base class of all spiking layers, with input checks, initial potential, scan, streaming and taps.

A neuron layer has a threshold, a leak, a `ScanSpec` and an initial potential; subclasses define threshold and leak. No
state is kept between calls. A training forward changes only two things: the statistics of the initial potential, and
learned constants that have left their range (they are set to the end of the range).
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.reference_scan import ScanResult
from steadyspike.core.spec import ScanSpec
from steadyspike.core.state import LIFState
from steadyspike.core.surrogate import why_not_compiled
from steadyspike.kernels.scan.choose import BACKENDS, COMPILED
from steadyspike.nn.constants import Constants
from steadyspike.nn.fused import forward_layer, scan_layer
from steadyspike.nn.initial_potential import InitialPotential, resolve_init
from steadyspike.nn.stream_window import StreamWindow, follow_stream

_OWN_RUN = "its dynamics are its own Python code (it overrides run)"
# The names in ``learn`` that differ from the scan's names: tau = 1/leak.
CONSTANT_OF = {"tau": "leak"}


class Tap(NamedTuple):
    """A function that is called after each scan of a layer: ``see(layer, x, u0, result)``.

    membrane: ``see`` reads result.m
    current: it reads x. If False, a norm and the layer may stay one node, which never has the current in memory
        (`norm_neuron`); x is then the norm's input.
    potential: it reads result.u; if False, it is not written
    """

    see: Callable[[Neuron, Tensor, Tensor, ScanResult], None]
    membrane: bool = False
    current: bool = True
    potential: bool = True


class Neuron(Constants):
    """Base class of spiking layers: ``forward(x) -> output`` on [T, B, ...].

    channels: None for one constant per layer, C for one per channel (axis 2 of x)

    A subclass may override `run`, `forward`, `threshold`, `leak`, `constant` and `limit_constants`. Which methods it
    overrides is determined when the class is defined. Replacing one of them afterwards, on the class or on a layer, is
    not supported (except a layer's own ``forward``, which counts as a hook).
    """

    # True if `run` uses a kernel. A subclass that overrides `run` sets it to True if its `run` calls Neuron.run.
    runs_kernel: ClassVar[bool] = True
    spiking: ClassVar[bool] = True  # False for a readout, whose output is the potential
    LEARNABLE: ClassVar[tuple[str, ...]] = ()  # the names that ``learn`` takes
    overridden: ClassVar[frozenset[str]] = frozenset()  # the methods above that the class overrides
    stream_window: StreamWindow | None = None  # the open window inside ``with ss.window(model)``

    def __init__(
        self,
        spec: ScanSpec,
        init: str | float | InitialPotential = "mp",
        channels: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if channels is not None and (isinstance(channels, bool) or not isinstance(channels, Integral) or channels < 1):
            raise ValueError(f"channels must be None or a whole number above 0, got {channels!r}")
        if backend not in BACKENDS:
            raise ValueError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
        if backend in COMPILED and not self.runs_kernel:
            raise ValueError(f"backend {backend!r} cannot run {type(self).__name__}: {_OWN_RUN}; use backend='auto'")
        self.spec, self.backend = spec, backend
        self.channels = None if channels is None else int(channels)
        self.init = resolve_init(init, self.channels)
        self.taps: dict[object, Tap] = {}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        # A kernel computes only the dynamics of `Neuron.run`, so an override turns it off unless the class sets it.
        # In the order of inheritance, so that a mixin's `run` counts too.
        first = next(base for base in cls.__mro__ if base.__dict__.keys() & {"run", "runs_kernel"})
        if "runs_kernel" not in first.__dict__:
            cls.runs_kernel = False
        # Looked up once per class, because asking at every forward would take as long as a small layer's scan.
        names = ("run", "forward", "threshold", "leak", "constant", "limit_constants")
        cls.overridden = frozenset(name for name in names if getattr(cls, name) is not getattr(Neuron, name))

    def why_no_kernel(self) -> str | None:
        """Why this layer needs the reference instead of a compiled kernel, in one sentence; None if it does not."""
        if not self.runs_kernel:
            return f"{type(self).__name__}: {_OWN_RUN}"
        return why_not_compiled(self.spec.surrogate)

    def __getstate__(self) -> dict[str, object]:
        """Copies and pickles contain no taps and no open window."""
        return {**self.__dict__, "taps": {}, "stream_window": None}

    @property
    def threshold(self) -> Tensor:
        """V, [1] or [C]."""
        return self.constant("threshold")

    @property
    def leak(self) -> Tensor:
        """a = 1/tau, [1] or [C]: the share of U that is lost per step."""
        return self.constant("leak")

    @property
    def threshold_name(self) -> str | None:
        """Returns the name of the parameter from which V is computed; None if V is fixed."""
        if "threshold" not in self._constants or self.constant_parameter("threshold") is None:
            return None
        return self._constants["threshold"].raw

    @property
    def learned(self) -> tuple[str, ...]:
        """The names of the trained constants, in the form of the argument ``learn``."""
        return tuple(name for name in self.LEARNABLE if self.is_learned(CONSTANT_OF.get(name, name)))

    @property
    def running_mean(self) -> Tensor:
        """The running mean of MP-Init."""
        mean = getattr(self.init, "running_mean", None)
        if mean is None:
            raise AttributeError(f"{type(self).__name__} has no running mean: its init is {type(self.init).__name__}")
        return mean

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False) -> ScanResult:
        """Runs the dynamics from U[0] = u0; neurons with other dynamics override this."""
        return scan_layer(self, x, u0, membrane)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [T, B, ...] to [T, B, ...], starting from the initial potential."""
        self.check_input(x)
        return forward_layer(self, x)

    def watched_run(self, x: Tensor, u0: Tensor, run: Callable[..., ScanResult] | None = None) -> ScanResult:
        """Calls ``run`` (default: ``self.run``) and passes the result to the taps of this layer."""
        result = (run or self.run)(x, u0, membrane=any(tap.membrane for tap in self.taps.values()))
        for tap in self.taps.values():
            tap.see(self, x, u0, result)
        return result

    def scan(self, x: Tensor, state: LIFState | None = None) -> tuple[Tensor, LIFState]:
        """Processes the next T steps of a stream, ``x`` [T, B, ...] with T >= 1; returns (output, new state).

        state: the state that the previous call returned; None starts at the initial potential

        T calls of one step give the same outputs and gradients as one call of T steps. In training mode, put the calls
        of a sequence into one ``with ss.window(model):``. Its end updates MP-Init as the end of a `forward` does.
        """
        self.check_input(x)
        if state is not None and not isinstance(state, LIFState):
            raise TypeError(
                f"state must be the LIFState that scan returned, or None to start; got {type(state).__name__}"
            )
        # An optimizer step may have moved V or tau out of range since the last call.
        if self.training:
            self.limit_constants()
        u0 = self.init.potential(x) if state is None else state.take(x, self)
        result = self.watched_run(x, u0)
        after = LIFState(result.u, x.shape[0] + (0 if state is None else state.step), self)
        follow_stream(self, state, after, result.out)
        return result.out, after

    def spikes(self, out: Tensor) -> Tensor:
        """Returns S in {0, 1} from this layer's output, with the surrogate gradient of S (trsg: S = O / V)."""
        if self.spec.family != "trsg":
            return out
        v = self.threshold
        v = v.view(-1, *([1] * (out.ndim - 3))) if v.numel() > 1 else v
        s = out / v
        # O / V may differ from 0 or 1 by rounding. Therefore the value is rounded, and the gradient stays that of O /
        # V.
        return s + (s.round() - s).detach()

    def check_input(self, x: Tensor) -> None:
        """Raises an error for an input that this layer cannot process correctly."""
        name = type(self).__name__
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} takes a tensor [T, B, ...], got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"{name} takes a floating-point current, got {x.dtype}; convert with x.float()")
        if x.layout != torch.strided:
            raise TypeError(f"{name} takes a dense tensor, got layout {x.layout}; convert with x.to_dense()")
        if x.ndim < 2:
            raise ValueError(f"{name} takes [T, B, ...] with time first, got shape {list(x.shape)}")
        if x.shape[0] == 0:
            raise ValueError(f"{name} needs at least one time step, got shape {list(x.shape)} (T = 0)")
        if self.channels is not None and (x.ndim < 3 or x.shape[2] != self.channels):
            raise ValueError(
                f"{name}(channels={self.channels}) takes [T, B, {self.channels}, ...], got shape {list(x.shape)}"
            )

    def extra_repr(self) -> str:
        spec = self.spec
        text = f"{self._constants_repr()}, learn={self.learned}, " if self._constants else ""
        detach = "" if spec.reset.detach == "none" else f", detach={spec.reset.detach!r}"
        text += f"gradient={spec.family!r}, surrogate={spec.surrogate}, reset={spec.reset.kind!r}{detach}"
        for name, value in (("strict", spec.strict), ("decay_input", spec.decay_input)):
            if value != getattr(ScanSpec, name):
                text += f", {name}={value}"
        return text if self.channels is None else f"{text}, channels={self.channels}"

    def _constants_repr(self) -> str:
        """Shows V and tau as numbers, or as a range over the channels."""
        with torch.no_grad():
            v, tau = _shown(self.threshold), _shown(1 / self.leak)
        return f"V={v}, tau={tau}" if self.spiking else f"tau={tau}"


def _shown(values: Tensor) -> str:
    """Shows one number, or the lowest and highest of several."""
    if values.is_meta:
        return "?"
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"


def neurons(model: nn.Module) -> dict[str, Neuron]:
    """Returns all neuron layers of a model by name, in registration order."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Neuron)}
