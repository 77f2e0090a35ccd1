"""A folded network on a CPU: bits between layers, each layer one call of C++."""

from steadyspike.deploy.runtime.report import Report
from steadyspike.deploy.runtime.runtime import Runtime, compile

__all__ = ["Report", "Runtime", "compile"]
