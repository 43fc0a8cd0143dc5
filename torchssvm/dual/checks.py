"""Checks that a batch belongs to a dual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import OLD_NUMBERS, check_int64, check_type
from torchssvm.core.operators import on_host, upload
from torchssvm.core.potentials import Potentials
from torchssvm.core.problem import UNKNOWN
from torchssvm.dual.state import DualState


def check_dual(dual: Any) -> DualState:
    """``dual``, or TypeError if it is not a DualState."""
    return check_type(dual, DualState, "dual", "a DualState, such as DualState.for_head(head, n, lam)")


def check_batch(dual: DualState, index: Tensor, potentials: Potentials, dtype: torch.dtype | None = None) -> Tensor:
    """The blocks of the examples, on the device of the weights, counted from the first block of this process.

    ``dtype`` is the required dtype of the potentials; None is the weights'.
    """
    size, weights = potentials.batch_size, dual.parameters[0]
    check_int64(index, "index", (size,), ", one number for each example")
    if not size:
        raise ValueError("index is empty: give batches with examples")
    examples = on_host(index)
    numbers = examples.tolist()
    _check_range(min(numbers), max(numbers), dual.num_examples, dual.own)
    if potentials.dtype is not (dtype := dtype or dual.dtype):
        dual.check_dtype()
        raise TypeError(
            f"the potentials are {potentials.dtype} and the head's weights {dtype}: give head(x), with autocast off"
        )
    dual.to(weights.device)
    places = examples - dual.own.start  # a copy
    return places if weights.is_cpu else upload(places, weights.device)


def check_repeated(dual: DualState, targets: Tensor, index: Tensor) -> None:
    """Raise ValueError if a repeated example of a batch has several digests ``targets``, ``[B]`` int64 on the CPU."""
    examples, counts = torch.stack([on_host(index), targets], 1).unique(dim=0)[:, 0].unique(return_counts=True)
    if bool((counts > 1).any()):
        wrong = (examples[counts > 1] + dual.own.start).tolist()
        raise ValueError(
            f"index={wrong[:5]} comes more than once in this batch, with different targets: number each example"
        )


def check_visits(index: Tensor, num_examples: int, own: range | None = None) -> Tensor:
    """The blocks to visit, contiguous on the CPU; an example may be repeated. ValueError as :func:`check_batch`."""
    check_int64(index, "index", (len(index),))
    if len(index):
        _check_range(int(index.min()), int(index.max()), num_examples, own)
    return index.cpu().contiguous() - (own.start if own is not None else 0)


def _check_range(low: int, high: int, num_examples: int, own: range | None) -> None:
    blocks = range(num_examples) if own is None else own
    if low not in blocks or high not in blocks:
        raise ValueError(
            f"index has {low} to {high}, and this process has the examples {blocks.start} to {blocks.stop - 1} of "
            f"num_examples={num_examples}: {OLD_NUMBERS}"
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
        f"{len(examples)} of {len(targets)} examples have other targets (or edges, parents or capacities) than before, "
        f"{examples[:5]} among them: make a new DualState, or use solve(start=..., kept=...)"
    )


def check_structure(dual: DualState) -> None:
    """Raise RuntimeError if an attribute of the structure has changed since the dual was made."""
    if (now := dual.structure.settings()) != dual.made_for:
        raise RuntimeError(
            f"the structure is {now}, and was {dual.made_for} when the dual was made: restore its attributes"
        )
