"""The heads that GDMM trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from torchssvm.core.batch import Batch
from torchssvm.core.linearity import is_check
from torchssvm.dual.state import DualState
from torchssvm.solvers.gdmm.chains import ChainProblem
from torchssvm.solvers.gdmm.label_sets import LabelSetProblem
from torchssvm.solvers.gdmm.problem import Problem
from torchssvm.solvers.gdmm.rules import BruteForce, SortedOracle
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.chain.sparse_head import SparseLinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.multilabel.head import LinearMultilabel
from torchssvm.structures.multilabel.sparse_head import SparseLinearMultilabel
from torchssvm.structures.multilabel.structure import Multilabel

_SMALL = 4096  # brute force is the default up to this many configurations of a factor


def check_head(head: Any) -> None:
    """Raise TypeError unless GDMM supports the head, and it is on the CPU."""
    check_kind(head)
    device = next(head.parameters()).device
    if device.type != "cpu":
        raise TypeError(
            f"head is on {device}, and GDMM runs on the CPU: call head.to('cpu'), for batches on any device; or train "
            "on the device by solve(...) or BlockGap and BCFW"
        )


def check_kind(head: Any) -> None:
    """Raise TypeError unless GDMM supports the head, on any device."""
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
    if getattr(structure, "transitions", None) is not None:
        raise TypeError(
            f"head.structure={structure} forbids transitions, and GDMM's messages do not know of them: use BlockGap "
            "and BCFW, or CompiledBCFW"
        )
    if head._forward_pre_hooks or not all(is_check(hook) for hook in head._forward_hooks.values()):
        raise TypeError("head has forward hooks, which GDMM does not run; use BlockGap and BCFW")


def make_problem(
    head: Any, dual: DualState, batches: Iterable[Batch], oracle: SortedOracle | BruteForce | None
) -> Problem:
    """The problem of a head that :func:`check_head` accepted."""
    if isinstance(head, LinearMultilabel):
        return LabelSetProblem(head, dual, batches, ordered=isinstance(oracle, SortedOracle))
    states = head.structure.num_states
    ordered = states**2 > _SMALL if oracle is None else isinstance(oracle, SortedOracle)
    return ChainProblem(head, dual, batches, ordered=ordered)
