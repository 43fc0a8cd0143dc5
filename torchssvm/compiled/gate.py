"""What is checked before compiled code runs, because compiled code checks nothing."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from torchssvm.dual import DualState, Labelings
from torchssvm.dual.bounds import Box
from torchssvm.dual.state import squared_norm
from torchssvm.heads import LinearChain
from torchssvm.structures import Chain


class Gate:
    """Refuses a head or a dual that the compiled loop was not made for, before anything changes.

    Args:
        head: The head.
        dual: Its dual state.

    Raises:
        TypeError: The head, its structure or the storage is not one that is compiled.
        ValueError: The dual is that of another head or of another structure.
    """

    def __init__(self, head: LinearChain, dual: DualState) -> None:
        if not isinstance(head, LinearChain) or head.positions is not None or type(head.structure) is not Chain:
            raise TypeError(f"head={head} must be a LinearChain with shared transitions and a Chain structure")
        if head.emission.device.type != "cpu":
            raise TypeError(f"head is on {head.emission.device}; the compiled loop runs on the CPU")
        if not isinstance(dual.storage, Labelings):
            raise TypeError(f"the dual's storage is {type(dual.storage).__name__}(); make it with storage=Labelings()")
        if type(dual.structure) is not Chain or repr(dual.structure) != repr(head.structure):
            raise ValueError(
                f"the dual's structure is {dual.structure}, and the compiled loop decodes by head.structure, "
                f"{head.structure}: give the structure to the head, or use BlockGap and BCFW"
            )
        self.head, self.dual, self.storage = head, dual, dual.storage
        self._shapes = [(p.shape, p.dtype) for p in dual.parameters]
        self._sets: Any = None  # the active sets whose labelings were looked at
        self.check_weights()

    def begin(self) -> None:
        """Set the weights of a new dual to zero, as ``BCFW`` does."""
        if self.dual.begin(Box(self.dual.parameters)):
            warnings.warn(
                "the head's weights were not zero, and a new dual stands for zero weights: they are now zero",
                stacklevel=3,
            )

    def check_weights(self) -> None:
        """Whether the head's parameters are those of the dual, as the last step left them.

        Raises:
            ValueError: They are others, or have other shapes.
            TypeError: They have bounds.
            RuntimeError: They were changed since.
        """
        head, dual = self.head, self.dual
        if [id(p) for p in head.parameters()] != [id(p) for p in dual.parameters]:
            raise ValueError("the head's parameters are not those that the dual was made for: make a DualState for it")
        if [(p.shape, p.dtype) for p in dual.parameters] != self._shapes or dual.parameters[0].device.type != "cpu":
            raise ValueError("the head's parameters have another shape, dtype or device now: make a new CompiledChain")
        if not all(p.is_contiguous() for p in dual.parameters):
            raise ValueError("the head's parameters must be contiguous")
        if dual.box:
            raise TypeError("the head's weights have bounds, which are not compiled; use BlockGap and BCFW")
        size = math.sqrt(squared_norm(dual.parameters))
        if not math.isfinite(size):
            raise RuntimeError("the head's weights are not finite")
        if dual.steps and dual.recomputed is None and dual.norm_changed(size):
            raise RuntimeError(
                f"the head's weights have changed since the last step (their norm was {dual.held_norm:.6g} and is "
                f"{size:.6g}): they are a function of the dual; load a state instead of setting them"
            )

    def check_blocks(self, lengths: Tensor) -> None:
        """Whether every block holds labelings of its own example.

        Args:
            lengths: ``[n]`` int64, those of the examples.

        Raises:
            ValueError: A block is of another length, or of labels that the head does not have.
        """
        sets, rest, states = self.storage.sets, self.storage.rest, self.head.structure.num_states
        rows = [buffer.rows for name, buffer in rest.buffers.items() if name == "emission"]
        for held in (sets.length, *rows):
            if bool((wrong := (held > 0) & (held != lengths)).any()):
                i = int(wrong.nonzero()[0])
                raise ValueError(
                    f"example {i} has length {int(lengths[i])}, and its dual block was made for length {int(held[i])}: "
                    "an index must always name the same example, at the same length"
                )
        if self._sets is sets:
            return
        if sets.labelings:
            (labels,) = sets.labelings
            integral = not labels.is_floating_point() and labels.dtype != torch.bool and labels.ndim == 3
            if not integral or labels.shape[2] < int((lengths * (sets.count > 0)).max()):
                raise ValueError(f"the dual's labelings are {labels.dtype} {list(labels.shape)}, not of this problem")
            inside = torch.arange(labels.shape[2]) < lengths.unsqueeze(1)
            used = torch.arange(labels.shape[1]) < sets.count.unsqueeze(1)
            own = labels[inside.unsqueeze(1) & used.unsqueeze(2)]
            if bool(((own < 0) | (own >= states)).any()):
                raise ValueError(f"the dual's labelings have labels beyond 0 to {states - 1}: not of this problem")
        for name, buffer in rest.buffers.items():
            there = buffer.start > 0
            shape = (states,) if name == "emission" else (states, states)
            wide = buffer.values.ndim == 1 or tuple(buffer.values.shape[1:]) == shape
            fits = bool((buffer.start + buffer.rows <= len(buffer.values)).all())
            single = name == "emission" or bool((buffer.rows[there] == 1).all())
            if not (wide and fits and single and bool(there[self.storage.mixed].all())):
                raise ValueError("the dual's merged labelings are not of this problem")
        if bool(self.storage.mixed.any()) and not rest.buffers:
            raise ValueError("the dual's merged labelings are missing")
        self._sets = sets

    def remember_lengths(self, lengths: Tensor) -> None:
        """Note the lengths of the blocks that hold labelings now."""
        sets = self.storage.sets
        sets.length = torch.where(sets.count > 0, lengths, sets.length)
