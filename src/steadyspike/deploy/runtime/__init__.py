"""A folded network on a CPU: bits between layers, each layer one call of C++."""

from steadyspike.deploy.runtime.runtime import Runtime, compile
from steadyspike.deploy.runtime.ways import Report

__all__ = ["Report", "Runtime", "compile"]
