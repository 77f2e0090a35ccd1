"""Norms over [T, B, C, ...] for spiking networks."""

from steadyspike.nn.norm.base import StepNorm, TimeNorm
from steadyspike.nn.norm.bn import StepBN
from steadyspike.nn.norm.bntt import BNTT
from steadyspike.nn.norm.make import NORMS, NormInfo, NormLike, check_norm, make_norm
from steadyspike.nn.norm.tab import TAB
from steadyspike.nn.norm.tdbn import TDBN
from steadyspike.nn.norm.tebn import TEBN

__all__ = [
    "BNTT",
    "NORMS",
    "TAB",
    "TDBN",
    "TEBN",
    "NormInfo",
    "NormLike",
    "StepBN",
    "StepNorm",
    "TimeNorm",
    "check_norm",
    "make_norm",
]
