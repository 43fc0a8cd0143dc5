"""Checks that the examples of a batch belong to a dual: their index, and digests of their targets on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import OLD_NUMBERS, check_int64, check_type
from torchssvm.core.batch import tree_tensors
from torchssvm.core.operators import on_host, upload
from torchssvm.core.potentials import Potentials
from torchssvm.dual.state import UNKNOWN, DualState

_ODD = (-7046029254386353131, -4417276706812531889, 1609587929392839161)  # large, odd: products spread over all bits
_SIZE = 2**63 - 1  # all bits except the sign, so that -0.0 counts as 0
_FIRST_CARRIED = 1000  # the place of carried tensors: behind all tensors of a target
_NONE = np.empty(0, np.int64)


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
    check_range(examples, dual.num_examples, dual.own)
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
        check_range(index, num_examples, own)
    return index.cpu().contiguous() - (own.start if own is not None else 0)


def check_range(index: Tensor, num_examples: int, own: range | None) -> None:
    """Raise ValueError unless the examples ``index`` are of this process."""
    blocks = range(num_examples) if own is None else own
    numbers = index.tolist()
    low, high = min(numbers), max(numbers)
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
        f"{examples[:5]} among them: restore their order, make a new DualState, or use solve(start=..., kept=...)"
    )


def check_structure(dual: DualState) -> None:
    """Raise RuntimeError if an attribute of the structure has changed since the dual was made."""
    if (now := dual.structure._fingerprint()) != dual.made_for:
        raise RuntimeError(
            f"the structure is {now}, and was {dual.made_for} when the dual was made: restore its attributes"
        )


def digest_targets(target: Any, lengths: Tensor | None = None) -> Tensor:
    """A digest of each example's target, as ``check_target`` returns it: ``[B]`` int64 on the CPU; never ``UNKNOWN``.

    It depends on the length, and on all numbers and their places, except for padding values: 0 and negative integers.
    A target whose negative numbers are no padding has other tensors to digest in its attribute ``digested``.
    """
    given = getattr(target, "digested", target)
    leaves = [given] if isinstance(given, Tensor) else tree_tensors(given)
    if lengths is not None and lengths.shape != leaves[0].shape[:1]:
        raise ValueError(f"lengths must be [{len(leaves[0])}], one for each target, got {list(lengths.shape)}")
    digests = [_digest(leaf, place, lengths, leaf.dtype != torch.bool) for place, leaf in enumerate(leaves)]
    return sum(digests[1:], digests[0])


def digest_examples(target: Any, potentials: Potentials) -> Tensor:
    """A digest of each example's target, length and carried tensors, ``[B]`` int64 on the CPU; never ``UNKNOWN``.

    Carried tensors are edges, parents, capacities. Their padding is -1 in whole numbers, and 0 in others.
    """
    total = digest_targets(target, potentials.lengths)
    for place, name in enumerate(potentials.carried, _FIRST_CARRIED):
        if (carried := getattr(potentials, name)) is not None:
            carried = on_host(carried)
            numbers = carried if carried.is_floating_point() else carried.to(torch.int64) + 1
            total += _digest(numbers, place, None, False)
    return total


def _digest(leaf: Tensor, place: int, lengths: Tensor | None, signed: bool) -> Tensor:
    """The sum of each example's numbers ``[B, ...]``, mixed with their places, and of its length: ``[B]`` on the CPU.

    ``signed`` says whether whole numbers below 0 are padding.
    """
    leaf, sizes = on_host(leaf), _NONE if lengths is None else on_host(lengths).numpy()
    numbers = leaf.to(torch.float64).view(torch.int64) if leaf.is_floating_point() else leaf.to(torch.int64)
    where, total = _places(place, leaf.shape[1:]), np.empty(len(leaf), np.int64)
    table = numbers.numpy().reshape(len(total), len(where))
    _sum_each(table, where, sizes, signed and not leaf.is_floating_point(), total)
    return torch.from_numpy(total)


@njit
def _sum_each(numbers: Any, where: Any, lengths: Any, signed: bool, total: Any) -> None:
    for b in range(numbers.shape[0]):
        digest = _mix(lengths[b] * _ODD[0]) if len(lengths) else 0
        for m in range(numbers.shape[1]):
            number = numbers[b, m]
            if (number > 0) if signed else (number & _SIZE != 0):
                digest += _mix(number * _ODD[1] + where[m])
        total[b] = digest if digest != UNKNOWN else 1


@njit
def _mix(number: Any) -> Any:
    """Make low bits depend on high bits; in products only high bits depend on low ones."""
    mixed = (number ^ (number >> 29)) * _ODD[2]
    return mixed ^ (mixed >> 32)


@lru_cache(maxsize=64)
def _places(leaf: int, shape: Sequence[int]) -> np.ndarray:
    """A number for each place in a tensor, which does not depend on the padded size; flat int64."""
    where = np.full((1,) * len(shape), leaf + 1, np.int64)
    for axis, size in enumerate(shape):
        along = np.arange(1, size + 1).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        where = _mix.py_func(where * _ODD[0] + along)
    return where.reshape(-1)
