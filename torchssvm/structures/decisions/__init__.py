"""Decisions with linear costs: predict, then optimise."""

from torchssvm.structures.decisions.combinatorial import Assignment, Knapsack, Selection, ShortestPath, SpanningTree
from torchssvm.structures.decisions.data import DecisionPotentials, DecisionProblems, Situations
from torchssvm.structures.decisions.head import LinearDecisions
from torchssvm.structures.decisions.integer_program import IntegerProgram
from torchssvm.structures.decisions.oracle import DecisionOracle
from torchssvm.structures.decisions.pyepo import OptModel
from torchssvm.structures.decisions.structure import Decision, Decisions

__all__ = [
    "Assignment",
    "Decision",
    "DecisionOracle",
    "DecisionPotentials",
    "DecisionProblems",
    "Decisions",
    "IntegerProgram",
    "Knapsack",
    "LinearDecisions",
    "OptModel",
    "Selection",
    "ShortestPath",
    "Situations",
    "SpanningTree",
]
