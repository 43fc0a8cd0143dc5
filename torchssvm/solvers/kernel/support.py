"""The dual variables of [B13] Algorithm B.1: the support labelings of every example, with their masses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.schema import Entry, Same, Schema, Stateful, damaged
from torchssvm.dual.storage import check_memory

MERGED = -1
"""The slot number that stands for the merged mass."""


@dataclass(frozen=True)
class SupportCounts:
    """How large the support is."""

    examples: int  # whose block is not at its target
    labelings: int  # other than targets, with positive mass: the support vectors of [B13]
    merged: int  # examples with mass kept as mean parts only: they had more labelings than the capacity
    tokens: int  # with nonzero coefficients, at which prediction evaluates the kernel
    num_examples: int
    num_tokens: int

    def __str__(self) -> str:
        merged = f", {self.merged} examples with merged mass" if self.merged else ""
        return (
            f"{self.labelings} support labelings of {self.examples}/{self.num_examples} examples{merged}, "
            f"{self.tokens}/{self.num_tokens} support tokens"
        )


class SupportLabelings(Stateful):
    """Labelings y with ``alpha_i(y) > 0``, at most ``capacity`` of each example, and their task losses.

    Slot 0 is the target, ``[n]`` or ``[n, N]`` int64, padded with -1, which has all mass at the start. Once an example
    has ``capacity`` labelings, a new one replaces the labeling of smallest mass, whose mass is added to the *merged*
    mass. Merged mass is known by its mean parts only (the block minus its listed labelings), and is one more atom that
    mass can move away from. Labels are 0 to ``num_states - 1``.
    """

    state_name = "support"

    def __init__(self, target: Tensor, num_states: int, capacity: int, memory_limit: int | None = None) -> None:
        capacity = check_whole(capacity, "capacity", 2, advice=": the target and one more labeling")
        n = len(target)
        self.capacity = capacity
        self.num_states = num_states
        if target.ndim > 2:
            raise ValueError(f"labelings must be [B] or [B, N], and the targets are {list(target.shape)}")
        needed = n * capacity * (4 * target[0].numel() + 16)
        what = f"support labelings of capacity={capacity}"
        check_memory(needed, target.device, memory_limit, what, "give a smaller capacity")
        self.labels = target.to(torch.int32).view(n, 1, -1)  # [n, slots, N]; slots grow up to the capacity
        self.mass = torch.ones(n, 1, dtype=torch.float64, device=target.device)  # [n, slots]
        self.loss = torch.zeros_like(self.mass)  # [n, slots]
        self.merged = torch.zeros(n, dtype=torch.float64, device=target.device)  # [n]

    def listed(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The labelings with mass of the examples ``index`` ``[B]``: rows of the batch and slots, ``[P]`` each."""
        found = (self.mass[index] > 0.0).nonzero()
        return found[:, 0], found[:, 1]

    def labelings(self, index: Tensor, slots: Tensor, like: Tensor) -> Tensor:
        """``[P]`` or ``[P, N]`` int64, cut to the padded shape of the labelings ``like``, ``[B]`` or ``[B, N]``."""
        found = self.labels[index, slots].to(torch.int64)
        return found[:, 0] if like.ndim == 1 else found[:, : like.shape[1]]

    def move(
        self, index: Tensor, labeling: Tensor, loss: Tensor, kept: Tensor, away: Tensor | None, taken: Tensor
    ) -> None:
        """Scale the masses of distinct examples ``index`` by ``kept``, and move ``taken`` to the labelings that the
        oracle found.

        ``away`` ``[R]`` int64 is the slot (or ``MERGED``) that ``taken`` comes from; None if all gave by ``kept``.
        """
        if not len(index):
            return
        self.mass[index] *= kept.unsqueeze(1)
        self.merged[index] *= kept
        if away is not None:
            listed = away != MERGED
            self.mass[index[listed], away[listed]] -= taken[listed]
            self.merged[index[~listed]] -= taken[~listed]
            self.mass[index] = self.mass[index].clamp(min=0.0)
            self.merged[index] = self.merged[index].clamp(min=0.0)
        slots = self._place(index, labeling)
        self.mass[index, slots] += taken
        self.loss[index, slots] = loss

    def _place(self, index: Tensor, labeling: Tensor) -> Tensor:
        """A slot for each labeling: its own, a free one, or the slot of smallest mass."""
        padded = torch.full_like(self.labels[index, 0], -1)
        wide = labeling.to(torch.int32).view(len(index), -1)
        padded[:, : wide.shape[1]] = wide
        same = (self.labels[index] == padded.unsqueeze(1)).all(2)
        same[:, 1:] &= self.mass[index, 1:] > 0.0  # a slot without mass is free; the target keeps its own
        known = same.any(1)
        order = self.mass[index].clone()
        order[:, 0] = torch.inf
        if bool((~known & ~(order == 0.0).any(1)).any()) and self.mass.shape[1] < self.capacity:
            self._grow()
            return self._place(index, labeling)
        slots = torch.where(known, same.to(torch.int64).argmax(1), order.argmin(1))
        new = ~known
        rows, places = index[new], slots[new]
        self.merged[rows] += self.mass[rows, places]
        self.mass[rows, places] = 0.0
        self.labels[rows, places] = padded[new]
        return slots

    def _grow(self) -> None:
        slots = min(self.capacity, max(4, 2 * self.mass.shape[1])) - self.mass.shape[1]
        n = len(self.mass)
        self.labels = torch.cat([self.labels, self.labels.new_full((n, slots, self.labels.shape[2]), -1)], 1)
        self.mass = torch.cat([self.mass, self.mass.new_zeros(n, slots)], 1)
        self.loss = torch.cat([self.loss, self.loss.new_zeros(n, slots)], 1)

    def counts(self, tokens: int, num_tokens: int) -> SupportCounts:
        """The size of the support; ``tokens`` is counted by the caller."""
        others, merged = self.mass[:, 1:] > 0.0, self.merged > 0.0
        return SupportCounts(
            examples=int((others.any(1) | merged).sum()),
            labelings=int(others.sum()),
            merged=int(merged.sum()),
            tokens=tokens,
            num_examples=len(self.mass),
            num_tokens=num_tokens,
        )

    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(t.numel() * t.element_size() for t in (self.labels, self.mass, self.loss, self.merged))

    @property
    def _device(self) -> torch.device:
        return self.mass.device

    def _schema(self) -> Schema:
        n, longest = len(self.mass), self.labels.shape[2]
        numbers = Entry(torch.float64, (n, "slots"), low=0.0)
        return {
            "capacity": Same(self.capacity),
            "labels": Entry(torch.int32, (n, "slots", longest), high=self.num_states - 1),
            "mass": numbers,
            "loss": numbers,
            "merged": Entry(torch.float64, (n,), low=0.0),
        }

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        labels, mass = state["labels"], state["mass"]
        if not 1 <= mass.shape[1] <= self.capacity:
            raise damaged(f"{where} has {mass.shape[1]} labelings of each example, and its capacity is {self.capacity}")
        if not torch.equal(labels[:, 0].to(self.labels.device), self.labels[:, 0]):
            raise ValueError("the checkpoint is of another problem: its targets differ")
        if not torch.equal(labels[mass > 0] < 0, (labels[:, :1] < 0).expand_as(labels)[mass > 0]):
            raise damaged(f"{where} has a labeling of another length than its target")
        if not bool(((mass.sum(1) + state["merged"] - 1.0).abs() < 1e-6).all()):
            raise damaged(f"the masses of {where} do not sum to 1")
