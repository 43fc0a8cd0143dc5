"""What is checked before compiled code runs, because compiled code checks nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.bounds import Box
from torchssvm.core.caller import warn
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.rows import RowBuffer
from torchssvm.dual.state import DualState, squared_norm
from torchssvm.solvers.compiled.kinds import Kind


class Gate:
    """Refuses a dual that is not of this head, or that the compiled loop was not made for, before anything changes.

    Args:
        kind: The head.
        dual: Its dual state.

    Raises:
        TypeError: The storage is not one that is compiled.
        ValueError: The dual is that of another head or of another structure.
    """

    def __init__(self, kind: Kind, dual: DualState) -> None:
        if type(dual.storage) not in (Labelings, MeanParts):
            raise TypeError(
                f"the dual's storage is {type(dual.storage).__name__}(): make it with storage=MeanParts() or "
                "storage=Labelings()"
            )
        if not dual.structure.same_as(kind.structure):
            raise ValueError(
                f"the dual's structure is {dual.structure}, and the compiled loop decodes by head.structure, "
                f"{kind.structure}: give the structure to the head, or use BlockGap and BCFW"
            )
        self.kind, self.dual = kind, dual
        self._shapes = [(p.shape, p.dtype) for p in dual.parameters]
        # Then only writes that torch knows of are looked for, and the norm is kept up to date: all weights are read in
        # exact passes, and not in every run.
        self.is_large = dual.is_large
        self._seen: tuple[Any, int] | None = None  # the storage's contents and the version that were looked at
        self.check_weights(begun=False)

    def begin(self) -> None:
        """Set the weights of a new dual to zero, as ``BCFW`` does."""
        if self.dual.begin(Box(self.dual.parameters)):
            warn(
                "the head's weights were not zero, and a new dual stands for zero weights: they are now zero",
            )

    def check_weights(self, *, begun: bool = True) -> None:
        """Whether the head's parameters are those of the dual, as the last step left them.

        Args:
            begun: Whether the weights of a new dual have been set to zero already.

        Raises:
            ValueError: They are others, or have other shapes.
            TypeError: They have bounds.
            RuntimeError: They were changed since.
        """
        head, dual = self.kind.head, self.dual
        if [id(p) for p in head.parameters()] != [id(p) for p in dual.parameters]:
            raise ValueError("the head's parameters are not those that the dual was made for: make a DualState for it")
        if [(p.shape, p.dtype) for p in dual.parameters] != self._shapes or dual.parameters[0].device.type != "cpu":
            raise ValueError("the head's parameters have another shape, dtype or device now: make a new compiled loop")
        if not all(p.is_contiguous() for p in dual.parameters):
            raise ValueError("the head's parameters must be contiguous")
        if dual.box:
            raise TypeError("the head's weights have bounds, which are not compiled; use BlockGap and BCFW")
        written = dual.written_to() or not self.is_large
        size = math.sqrt(squared_norm(dual.parameters)) if written else dual.held_norm
        if not math.isfinite(size):
            raise RuntimeError("the head's weights are not finite")
        if (begun or dual.steps) and dual.recomputed is None and dual.norm_changed(size):
            raise RuntimeError(
                f"the head's weights have changed since the last step (their norm was {dual.held_norm:.6g} and is "
                f"{size:.6g}): they are a function of the dual; load a state instead of setting them"
            )

    def check_blocks(self, lengths: Tensor, targets: Tensor) -> None:
        """Whether every block is that of its own example; nothing to do while only this loop changes them.

        Args:
            lengths: ``[n]`` int64, those of the examples.
            targets: ``[n]`` int64, digests of their targets.

        Raises:
            RuntimeError: A block was trained on another target.
            ValueError: A block is of another length, or of labels that the head does not have.
        """
        storage = self.dual.storage
        contents = storage.sets if isinstance(storage, Labelings) else storage.buffers  # type: ignore[attr-defined]
        if self._seen is not None and self._seen[0] is contents and self._seen[1] == self.dual.version:
            return
        if isinstance(storage, Labelings):
            self._check_lengths(storage.sets.length, lengths)
            self._check_labelings(storage, lengths)
        else:
            assert isinstance(storage, MeanParts)
            self._check_rows(storage.buffers, lengths)
        self.dual.check_targets(targets)
        self._seen = (contents, self.dual.version)

    def remember(self) -> None:
        """The blocks are as this loop has left them."""
        if self._seen is not None:
            self._seen = (self._seen[0], self.dual.version)

    def _check_lengths(self, held: Tensor, lengths: Tensor) -> None:
        if bool((wrong := (held > 0) & (held != lengths)).any()):
            i = int(wrong.nonzero()[0])
            raise ValueError(
                f"example {i} has length {int(lengths[i])}, and its dual block was made for length {int(held[i])}: "
                "an index must always name the same example, at the same length"
            )

    def _check_labelings(self, storage: Labelings, lengths: Tensor) -> None:
        sets, states = storage.sets, self.kind.num_states
        if sets.labelings:
            (held,) = sets.labelings
            integral = not held.is_floating_point() and held.dtype != torch.bool
            if not integral or held.ndim != (2 if self.kind.pairs is None else 3):
                raise ValueError(f"the dual's labelings are {held.dtype} {list(held.shape)}, not of this problem")
            labels = self.kind.as_sequences(held)
            if labels.shape[2] < int((lengths * (sets.count > 0)).max()):
                raise ValueError(f"the dual's labelings are {held.dtype} {list(held.shape)}, not of this problem")
            inside = torch.arange(labels.shape[2]) < lengths.unsqueeze(1)
            used = torch.arange(labels.shape[1]) < sets.count.unsqueeze(1)
            own = labels[inside.unsqueeze(1) & used.unsqueeze(2)]
            if bool(((own < 0) | (own >= states)).any()):
                raise ValueError(f"the dual's labelings have labels beyond 0 to {states - 1}: not of this problem")
        self._check_rows(storage.rest.buffers, lengths, storage.mixed)

    def _check_rows(self, buffers: dict[str, RowBuffer], lengths: Tensor, needed: Tensor | None = None) -> None:
        """``needed`` says which examples must have rows."""
        kind, states = self.kind, self.kind.num_states
        shapes = {kind.emission: (states,)} | ({} if kind.pairs is None else {kind.pairs: (states, states)})
        if not buffers:
            if needed is not None and bool(needed.any()):
                raise ValueError("the dual's merged labelings are missing")
            return
        if buffers.keys() != shapes.keys():
            raise ValueError(f"the dual holds blocks for {sorted(buffers)}, and the head gives {sorted(shapes)}")
        rows, start = buffers[kind.emission].rows, buffers[kind.emission].start
        if bool(((start > 0) != (rows > 0)).any()):
            raise ValueError("the dual's mean parts are not of this problem")
        self._check_lengths(rows, lengths)
        for name, buffer in buffers.items():
            there = buffer.start > 0
            wide = buffer.values.ndim == 1 or tuple(buffer.values.shape[1:]) == shapes[name]
            fits = bool((buffer.start + buffer.rows <= len(buffer.values)).all())
            single = name == kind.emission or bool((buffer.rows[there] == 1).all())
            present = needed is None or bool(there[needed].all())
            if not (wide and fits and single and present):
                raise ValueError("the dual's mean parts are not of this problem")
