"""From a trained model to what runs elsewhere: the folded network of binary spikes, and what starts from it."""

from steadyspike.deploy.errors import CannotFold, DamagedFile
from steadyspike.deploy.file import load, load_extra, save
from steadyspike.deploy.fold import fold
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.proof import Proof, prove
from steadyspike.deploy.runtime import Runtime, compile
from steadyspike.deploy.stream import Confidence, Decision, Margin, Stream, stream

__all__ = [
    "CannotFold",
    "Confidence",
    "DamagedFile",
    "Decision",
    "FoldedNetwork",
    "Graph",
    "Margin",
    "Node",
    "Proof",
    "Runtime",
    "Stream",
    "compile",
    "fold",
    "load",
    "load_extra",
    "prove",
    "save",
    "stream",
]
