"""Segments: a sequence cut into segments, each with a label and a duration (semi-Markov models)."""

from torchssvm.structures.segments.head import LinearSegments
from torchssvm.structures.segments.oracle import semi_markov
from torchssvm.structures.segments.structure import Segments, span_f1

__all__ = ["LinearSegments", "Segments", "semi_markov", "span_f1"]
