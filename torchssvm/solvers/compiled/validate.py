"""Checks before compiled code runs, as compiled code itself checks nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchssvm.core.batch import tree_tensors
from torchssvm.core.row_sparse import squared_norm
from torchssvm.dual.checks import check_targets
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.rows import RowBuffer
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import MeanParts, other_length
from torchssvm.kinds.adapter import HeadAdapter


def validate_problem(adapter: HeadAdapter, dual: DualState) -> None:
    """Raise TypeError for a storage without a compiled form, and ValueError for a dual of another structure."""
    if type(dual.storage) not in (Labelings, MeanParts):
        raise TypeError(
            f"the dual's storage is {type(dual.storage).__name__}(): make it with storage=MeanParts() or "
            "storage=Labelings()"
        )
    if not dual.structure.same_as(adapter.structure):
        raise ValueError(
            f"the dual's structure is {dual.structure}, and the compiled loop decodes by head.structure, "
            f"{adapter.structure}: give the structure to the head, or use BlockGap and BCFW"
        )


def validate_weights(
    adapter: HeadAdapter, dual: DualState, layout: list[tuple[torch.Size, torch.dtype]], *, begun: bool = True
) -> None:
    """Raise an error unless the head's parameters are those of the dual, unchanged since the last step and without
    bounds.

    ``layout`` has their shapes and dtypes when the loop was made; ``begun`` says that those of a new dual are zero
    already.
    """
    head = adapter.head
    if [id(p) for p in head.parameters()] != [id(p) for p in dual.parameters]:
        raise ValueError("the head's parameters are not those that the dual was made for: make a DualState for it")
    if [(p.shape, p.dtype) for p in dual.parameters] != layout or dual.parameters[0].device.type != "cpu":
        raise ValueError(
            "the head's parameters have another shape, dtype or device now: call head.to('cpu') if it was moved, or "
            "make a new compiled loop"
        )
    if not all(p.is_contiguous() for p in dual.parameters):
        raise ValueError("the head's parameters must be contiguous")
    if dual.box.has_bounds:
        raise TypeError("the head's weights have bounds, which are not compiled; use BlockGap and BCFW")
    # With many weights, only writes that torch tracks are detected here; exact passes read all weights.
    written = dual.written_to() or not dual.is_large
    size = math.sqrt(squared_norm(dual.parameters)) if written else dual.held_norm
    if not math.isfinite(size):
        raise RuntimeError("the head's weights are not finite")
    if (begun or dual.steps) and dual.recomputed is None and dual.norm_changed(size):
        raise RuntimeError(
            f"the head's weights have changed since the last step (their norm was {dual.held_norm:.6g} and is "
            f"{size:.6g}): they are a function of the dual; load a state instead of setting them"
        )


def validate_blocks(adapter: HeadAdapter, dual: DualState, lengths: Tensor, targets: Tensor) -> None:
    """Raise RuntimeError for a block of another target, and ValueError for one of another length or of unknown labels.

    ``lengths`` of the examples and digests ``targets`` are ``[n]`` int64.
    """
    storage = dual.storage
    if isinstance(storage, Labelings):
        _check_lengths(storage.sets.length, lengths, dual.own.start)
        _check_labelings(adapter, storage, lengths, dual.own.start)
    else:
        assert isinstance(storage, MeanParts)
        _check_rows(adapter, storage.buffers, lengths, dual.own.start)
    check_targets(dual, targets)


def _check_lengths(held: Tensor, lengths: Tensor, first: int) -> None:
    if bool((wrong := (held > 0) & (held != lengths)).any()):
        i = int(wrong.nonzero()[0])
        raise other_length(first + i, int(lengths[i]), int(held[i]))


def _check_labelings(adapter: HeadAdapter, storage: Labelings, lengths: Tensor, first: int) -> None:
    sets, (least, most) = storage.sets, adapter.label_limits(lengths)
    sizes = adapter.label_counts(lengths)
    if sets.labelings:
        held, like = sets.labelings[0], tree_tensors(adapter.longest_labeling(1))
        if len(sets.labelings) != len(like):
            raise ValueError(
                f"the dual's labelings have {len(sets.labelings)} parts, and those of this problem {len(like)}"
            )
        integral = not held.is_floating_point() and held.dtype != torch.bool
        if not integral or held.ndim != 1 + like[0].ndim:
            raise ValueError(f"the dual's labelings are {held.dtype} {list(held.shape)}, not of this problem")
        labels = adapter.as_sequences(held)
        if labels.shape[2] < int((sizes * (sets.count > 0)).max()):
            raise ValueError(f"the dual's labelings are {held.dtype} {list(held.shape)}, not of this problem")
        inside = torch.arange(labels.shape[2]) < sizes.unsqueeze(1)
        used = torch.arange(labels.shape[1]) < sets.count.unsqueeze(1)
        own = inside.unsqueeze(1) & used.unsqueeze(2)
        if bool((((labels < least) | (labels > most.view(-1, 1, 1))) & own).any()):
            raise ValueError(
                f"the dual's labelings have labels beyond {least} to {int(most.max())}: not of this problem"
            )
    _check_rows(adapter, storage.rest.buffers, lengths, first, storage.mixed)


def _check_rows(
    adapter: HeadAdapter, buffers: dict[str, RowBuffer], lengths: Tensor, first: int, needed: Tensor | None = None
) -> None:
    """Check the rows of example ``first`` and those after it; ``needed`` marks the examples that must have rows."""
    shapes = adapter.part_shapes(lengths)
    if not buffers:
        if needed is not None and bool(needed.any()):
            raise ValueError("the dual's merged labelings are missing")
        return
    if buffers.keys() != shapes.keys():
        raise ValueError(f"the dual holds blocks for {sorted(buffers)}, and the head gives {sorted(shapes)}")
    for name, buffer in buffers.items():
        wanted, sizes = shapes[name]
        there, held = buffer.start > 0, tuple(buffer.values.shape[1:])
        if bool((there != (buffer.rows > 0)).any()):
            raise ValueError("the dual's mean parts are not of this problem")
        _check_lengths(buffer.rows, wanted, first)
        wide = buffer.values.ndim == 1 or held == sizes
        if not wide and adapter.ragged_labels:  # rows are as long as those of the longest example so far
            wide = len(held) == len(sizes) and all(a <= b for a, b in zip(held, sizes, strict=True))
            # That of another process may be longer, and has been zero here.
            wide |= held[1:] == sizes[1:] if len(sizes) > 1 else not bool(buffer.values[:, sizes[0] :].any())
        if not wide or (needed is not None and not bool(there[needed].all())):
            raise ValueError("the dual's mean parts are not of this problem")
