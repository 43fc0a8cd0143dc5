"""The heads that GDMM trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from torchssvm.batch import Batch
from torchssvm.dual import DualState
from torchssvm.factorwise.chains import ChainProblem
from torchssvm.factorwise.label_sets import LabelSetProblem
from torchssvm.factorwise.problem import Problem
from torchssvm.factorwise.rules import BruteForce, SortedOracle
from torchssvm.heads import LinearChain, LinearMultilabel, SparseLinearChain, SparseLinearMultilabel
from torchssvm.linearity import is_check
from torchssvm.structures import Chain, Multilabel

_SMALL = 4096  # configurations of a factor, up to which they are all looked at unasked


def check_head(head: Any) -> None:
    """Raise TypeError unless the head is of a kind that GDMM knows, as it knows it, and on the CPU."""
    check_kind(head)
    device = next(head.parameters()).device
    if device.type != "cpu":
        raise TypeError(f"head is on {device}; GDMM runs on the CPU")


def check_kind(head: Any) -> None:
    """Raise TypeError unless the head is of a kind that GDMM knows, as it knows it, wherever it is."""
    if not isinstance(head, nn.Module):
        raise TypeError(f"head is a {type(head).__name__}, and must be a module, such as LinearChain(...)")
    kinds = (LinearMultilabel, SparseLinearMultilabel, LinearChain, SparseLinearChain)
    kind, structure = type(head), getattr(head, "structure", None)
    if kind in kinds and isinstance(head, LinearMultilabel) and head.pairwise is None:
        raise TypeError(
            f"head={head} has no interactions: train it with BCFW, whose oracle is immediate; or make a head with "
            "pairwise=True"
        )
    if kind not in kinds or (
        type(structure) is not Multilabel
        if isinstance(head, LinearMultilabel)
        else (type(structure) is not Chain or getattr(head, "positions", None) is not None)
    ):
        raise TypeError(
            f"head={head} must be a LinearChain with shared transitions or a SparseLinearChain, and its structure a "
            "Chain; or a LinearMultilabel or SparseLinearMultilabel, and its structure a Multilabel. Heads "
            "of your own train with BlockGap and BCFW"
        )
    if head._forward_pre_hooks or not all(is_check(hook) for hook in head._forward_hooks.values()):
        raise TypeError("head has forward hooks, which GDMM does not run; use BlockGap and BCFW")


def make_problem(
    head: Any, dual: DualState, batches: Iterable[Batch], oracle: SortedOracle | BruteForce | None
) -> Problem:
    """The kind of factor graph that the head is for; :func:`check_head` has looked at it."""
    if isinstance(head, LinearMultilabel):
        return LabelSetProblem(head, dual, batches, ordered=isinstance(oracle, SortedOracle))
    states = head.structure.num_states
    ordered = states**2 > _SMALL if oracle is None else isinstance(oracle, SortedOracle)
    return ChainProblem(head, dual, batches, ordered=ordered)
