"""Trained models for use elsewhere: the folded network of binary spikes, and its exports."""

from steadyspike.deploy.energy import count_operations
from steadyspike.deploy.errors import CannotFold, DamagedFile
from steadyspike.deploy.file import load, load_extra, save
from steadyspike.deploy.fold import fold
from steadyspike.deploy.from_nir import from_nir
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.integers import IntegerNetwork
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.proof import Proof, prove
from steadyspike.deploy.runtime import Runtime, compile
from steadyspike.deploy.stream import Confidence, Decision, Margin, Stream, stream
from steadyspike.deploy.to_nir import export_nir
from steadyspike.deploy.to_onnx import export_onnx

__all__ = [
    "CannotFold",
    "Confidence",
    "DamagedFile",
    "Decision",
    "FoldedNetwork",
    "Graph",
    "IntegerNetwork",
    "Margin",
    "Node",
    "Proof",
    "Runtime",
    "Stream",
    "compile",
    "count_operations",
    "export_nir",
    "export_onnx",
    "fold",
    "from_nir",
    "load",
    "load_extra",
    "prove",
    "save",
    "stream",
]


def __dir__() -> list[str]:
    return sorted(__all__)
