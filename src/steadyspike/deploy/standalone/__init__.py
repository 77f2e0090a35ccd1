"""Folded networks as code that needs no framework: one C99 file, or one page with the network in JavaScript.

`lower` turns a folded network into a `Program`, a list of loops over pixels and channels. The C writer prints it and
the page interprets it, so both compute the same.
"""

from steadyspike.deploy.standalone.lower import lower
from steadyspike.deploy.standalone.program import Program

__all__ = ["Program", "lower"]
