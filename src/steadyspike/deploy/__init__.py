"""From a trained model to what runs elsewhere: the folded network of binary spikes, and what starts from it."""

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.fold import fold
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.proof import Proof, prove

__all__ = ["CannotFold", "FoldedNetwork", "Graph", "Node", "Proof", "fold", "prove"]
