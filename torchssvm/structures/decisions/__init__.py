"""Decisions with linear costs: predict, then optimise."""

from torchssvm.structures.decisions.data import DecisionProblems
from torchssvm.structures.decisions.head import LinearDecisions
from torchssvm.structures.decisions.oracle import DecisionOracle
from torchssvm.structures.decisions.potentials import DecisionPotentials, Situations
from torchssvm.structures.decisions.shortest_path import ShortestPath
from torchssvm.structures.decisions.structure import Decision, Decisions

__all__ = [
    "Decision",
    "DecisionOracle",
    "DecisionPotentials",
    "DecisionProblems",
    "Decisions",
    "LinearDecisions",
    "ShortestPath",
    "Situations",
]
