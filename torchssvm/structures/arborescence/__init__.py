"""Dependency trees: arborescences over the tokens of a sentence."""

from torchssvm.structures.arborescence.head import LinearArcs
from torchssvm.structures.arborescence.structure import Arborescence, NonProjective, Projective

__all__ = ["Arborescence", "LinearArcs", "NonProjective", "Projective"]
