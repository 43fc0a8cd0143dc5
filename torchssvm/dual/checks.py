"""Checks that a batch belongs to a dual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import OLD_NUMBERS, check_int64
from torchssvm.core.operators import on_host, upload
from torchssvm.core.potentials import Potentials
from torchssvm.core.problem import UNKNOWN
from torchssvm.dual.state import DualState


def check_dual(dual: Any) -> DualState:
    """``dual``, or TypeError if it is not a DualState."""
    if isinstance(dual, DualState):
        return dual
    raise TypeError(
        f"dual is a {type(dual).__name__}, and must be a DualState, such as DualState.for_head(head, n, lam)"
    )


def check_batch(dual: DualState, index: Tensor, potentials: Potentials, dtype: torch.dtype | None = None) -> Tensor:
    """The blocks of the examples, on the device of the weights, counted from the first that this process holds.

    ``dtype`` is the required dtype of the potentials; None is the weights'.
    """
    size, weights = potentials.batch_size, dual.parameters[0]
    check_int64(index, "index", (size,), ", one number for each example")
    if not size:
        raise ValueError("the batch is empty: index holds no example")
    examples = on_host(index)
    numbers = examples.tolist()
    _check_range(min(numbers), max(numbers), dual.num_examples, dual.own)
    if potentials.dtype is not (dtype := dtype or dual.dtype):
        if not potentials.dtype.is_floating_point:
            raise TypeError(
                f"the potentials are {potentials.dtype}: give what the head returned, loss(head(x), y, index)"
            )
        dual.check_dtype()
        raise TypeError(
            f"the potentials are {potentials.dtype} and the head's weights {dtype}: run it with autocast off"
        )
    dual.to(weights.device)
    places = examples - dual.own.start  # in memory of its own
    return places if weights.is_cpu else upload(places, weights.device)


def check_repeated(dual: DualState, targets: Tensor, index: Tensor) -> None:
    """Raise ValueError if a repeated example of a batch has several digests ``targets``, ``[B]`` int64 on the CPU."""
    examples, counts = torch.stack([on_host(index), targets], 1).unique(dim=0)[:, 0].unique(return_counts=True)
    if bool((counts > 1).any()):
        wrong = (examples[counts > 1] + dual.own.start).tolist()
        raise ValueError(
            f"index holds {wrong[:5]} more than once in this batch, with different targets: a number is one example"
        )


def check_visits(index: Tensor, num_examples: int, own: range | None = None) -> Tensor:
    """The blocks to visit, contiguous on the CPU; an example may be repeated. ValueError as :func:`check_batch`."""
    if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype != torch.int64:
        raise ValueError(f"index={index} must be an int64 tensor of one axis")
    if len(index):
        _check_range(int(index.min()), int(index.max()), num_examples, own)
    return index.cpu().contiguous() - (own.start if own is not None else 0)


def _check_range(low: int, high: int, num_examples: int, own: range | None) -> None:
    if low >= 0 and high < num_examples:
        if own is None or (low in own and high in own):
            return
        raise ValueError(
            f"index holds {low} to {high}, and this process has the blocks of the examples {own.start} to "
            f"{own.stop - 1} alone: draw from dual.own, as GapBatchSampler(dual, ...) does"
        )
    raise ValueError(
        f"index holds {low} to {high}; the dual has num_examples={num_examples}, so that an index is 0 to "
        f"{num_examples - 1}: it is an example's place in the dataset that is trained on ({OLD_NUMBERS})"
    )


def check_targets(dual: DualState, targets: Tensor, index: Tensor | None = None) -> bool:
    """Compare digests of examples, ``[B]`` int64 on the CPU, with those that the blocks were trained on.

    ``index`` ``[B]`` int64 are the blocks; None is all of this process in order. Returns whether some are new.
    """
    if index is None:
        check_structure(dual)
    known = dual.targets if index is None else dual.targets[on_host(index)]
    if torch.equal(known, targets):
        return False
    wrong = (known != targets) & (known != UNKNOWN)
    if not bool(wrong.any()):
        return True
    rows = wrong.nonzero().flatten()
    examples = ((rows if index is None else on_host(index)[rows]).unique() + dual.own.start).tolist()
    raise RuntimeError(
        f"{len(examples)} of {len(targets)} examples have other targets than those that the dual was trained on, "
        f"{examples[:5]} among them, or other edges, parents or capacities beside their features: the dual belongs to "
        "the data that it was trained on, in the same order. For other data make a new DualState, or give "
        "solve(start=..., kept=...) the old place of each example"
    )


def check_structure(dual: DualState) -> None:
    """Raise RuntimeError if an attribute of the structure has changed since the dual was made."""
    if (now := dual.structure.settings()) != dual.made_for:
        raise RuntimeError(
            f"the structure is {now} now, and was {dual.made_for} when the dual was made: set its attributes back"
        )
