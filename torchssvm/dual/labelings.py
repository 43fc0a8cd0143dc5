"""The storage by labelings: active sets, and the mean parts of labelings that were merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.gradients import adjoint
from torchssvm.core.potentials import Parts, Potentials, inner, scale
from torchssvm.core.schema import Entry, Same, Schema, damaged
from torchssvm.core.structure import Labeling, OracleResult, Structure, as_decoding, check_padding
from torchssvm.dual.active_sets import ActiveSets
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage, Stored


class Labelings(Storage):
    """Keeps the dual distribution of every block: up to ``capacity`` labelings and their mass.

    ``psi_i = -sum_c alpha_c (p(y_c) - p(y_i))``. The labelings with mass are the active set of the pairwise, away and
    corrective directions; all labelings are the cache of ``CacheOracle``. If a block is full, a new labeling replaces
    the least recent one without mass. If all have mass, the one with the least mass is merged into the *rest*: one
    point of the marginal polytope, kept as mean parts, which every direction treats as one more atom. At the start the
    rest is the target, with mass 1. Memory holds the labelings (T small integers each) and a few numbers for each;
    directions that need inner products add ``capacity^2`` numbers an example.

    Args:
        capacity: C, the largest number of labelings of a block.

    Raises:
        ValueError: ``capacity`` is less than 1.
    """

    keeps_labelings = True

    def __init__(self, capacity: int = 20) -> None:
        self.capacity = check_whole(capacity, "capacity")
        self.wants_curvature = False
        self._template: Labeling | None = None

    def bind(
        self,
        num_examples: int,
        lam: float,
        structure: Structure,
        parameters: Sequence[torch.nn.Parameter],
        memory_limit: int | None,
    ) -> None:
        """Set the problem."""
        super().bind(num_examples, lam, structure, parameters, memory_limit)
        self.rest = MeanParts()
        self.rest.bind(num_examples, lam, structure, parameters, memory_limit)
        device = self.parameters[0].device
        self.sets = ActiveSets(num_examples, self.capacity, structure.padding, device)
        self.rest_mass = torch.ones(num_examples, dtype=torch.float64, device=device)
        self.rest_loss = torch.zeros(num_examples, dtype=torch.float64, device=device)  # as l_i: (1/n) mass * loss
        self.mixed = torch.zeros(num_examples, dtype=torch.bool, device=device)  # the rest holds merged labelings, too

    def keep_curvature(self) -> None:
        """Keep the inner products of each block's labelings from now on."""
        self.wants_curvature = True

    def estimate(self, potentials: Potentials) -> int:
        """Bytes for all examples with full active sets, if their labelings are as long as this batch's."""
        gram = self.parameters[0].element_size() if self.wants_curvature else 0
        each = ActiveSets.bytes_each(self._like(potentials), self.capacity, gram)
        return self.num_examples * (each + 8 + 8 + 1)

    def gather(self, index: Tensor, potentials: Potentials, target: Labeling) -> Stored:
        """The blocks of a batch."""
        if not self.sets.labelings:
            self.check_memory(
                potentials, "Labelings(capacity=...) with a smaller capacity takes less, and so may MeanParts()"
            )
        if not self.rest.nbytes() and bool((self.sets.count[index] == self.capacity).any()):
            self.rest.check_memory(potentials, "a larger capacity of Labelings() needs no room for merged labelings")
        if potentials.lengths is not None:
            held = self.sets.length[index]
            if bool((wrong := (held != potentials.lengths) & (held > 0)).any()):
                row = int(wrong.nonzero()[0])
                raise ValueError(
                    f"example {int(index[row])} came with length {int(potentials.lengths[row])}, and its labelings "
                    f"have {int(held[row])}: an index must always name the same example, at the same length"
                )
        return _StoredLabelings(self, index, potentials, target)

    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if an example is in two batches: each step starts from the same masses."""
        seen: set[int] = set()
        for batch, own in zip(batches, rows, strict=True):
            assert isinstance(batch, _StoredLabelings)
            examples = set(batch.index[own].tolist())
            if twice := sorted(seen & examples):
                raise ValueError(
                    f"examples {twice[:5]} came in two of the batches that were accumulated for one step, and their "
                    "blocks are kept as Labelings(): accumulate batches of distinct examples, use BoxQP() with a head "
                    "that gives its adjoint, or storage=MeanParts()"
                )
            seen |= examples

    def remember(self, stored: Stored, corner: OracleResult) -> Callable[[], None] | None:
        """Cache the corners of an exact pass, in free slots and in slots without mass."""
        assert isinstance(stored, _StoredLabelings)
        new = (stored.lookup(corner.labeling) == 0).nonzero().flatten()
        if not len(new):
            return None
        index, lengths = stored.index[new], None if stored.lengths is None else stored.lengths[new]
        labeling, loss = tree_map(lambda t: t[new], corner.labeling), corner.loss[new]

        def keep() -> None:
            self._insert(index, lengths, labeling, loss)

        return keep

    def forget_features(self) -> None:
        """Forget the inner products: they were computed from former features."""
        self.sets.known.fill_(False)

    def contribution(self, stored: Stored, potentials: Potentials) -> list[Tensor]:
        """One backward pass of the head."""
        assert isinstance(stored, _StoredLabelings)
        weight = 1.0 / (self.lam * self.num_examples)
        return [g.to(torch.float64) * weight for g in adjoint(potentials, stored.psi, self.parameters, sparse=True)]

    def rescale(self, factor: float) -> None:
        """``psi_i *= factor``: the labelings' lost mass goes to the target."""
        sets = self.sets
        sets.mass *= factor
        self.rest_loss *= factor
        self.rest.rescale(factor)
        self.rest_mass = factor * self.rest_mass + (1.0 - factor)

    def support(self) -> Tensor:
        """The number of labelings with mass in each block, ``[n]`` int64; the rest is not counted."""
        return (self.sets.mass > 0.0).sum(1)

    def nbytes(self) -> int:
        """Bytes held now."""
        own = [self.rest_mass, self.rest_loss, self.mixed] if self.sets.labelings else []
        return self.sets.nbytes() + self.rest.nbytes() + sum(t.numel() * t.element_size() for t in own)

    def to(self, device: torch.device) -> None:
        """Move everything."""
        self.sets.to(device)
        self.rest.to(device)
        self.rest_mass, self.rest_loss = self.rest_mass.to(device), self.rest_loss.to(device)
        self.mixed = self.mixed.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Active sets, and the rest."""
        return {
            "kind": "labelings",
            "sets": self.sets.state_dict(),
            "rest": self.rest.state_dict(),
            "rest_mass": self.rest_mass.clone(),
            "rest_loss": self.rest_loss.clone(),
            "mixed": self.mixed.clone(),
        }

    def _schema(self) -> Schema:
        rest = Entry(torch.float64, (self.num_examples,), low=0.0)
        return {
            "kind": Same("labelings"),
            "sets": partial(self.sets.check_state, dtype=self.parameters[0].dtype),
            "rest": self.rest.check_state,
            "rest_mass": rest,
            "rest_loss": rest,
            "mixed": Entry(torch.bool, (self.num_examples,)),
        }

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        total = state["rest_mass"] + state["sets"]["mass"].sum(1)
        if not bool(((total - 1.0).abs() < 1e-6).all()):
            raise damaged(f"the masses of {where}['sets'] and 'rest_mass' do not sum to 1")

    def restore(self, state: dict[str, Any]) -> None:
        """Restore everything to the bit."""
        device = self.parameters[0].device
        self.sets = ActiveSets.restored(state["sets"], self.structure.padding, device)
        self.rest.restore(state["rest"])
        for name in ("rest_mass", "rest_loss", "mixed"):
            setattr(self, name, state[name].to(device, copy=True))

    def _like(self, potentials: Potentials) -> Labeling:
        """A labeling of the right kind, sizes and dtypes."""
        if self._template is None:
            one = potentials.detach().select(torch.zeros(1, dtype=torch.int64, device=potentials.device))
            self._template = as_decoding(self.structure.argmax(one)).labeling
        return self._template

    def _insert(
        self,
        index: Tensor,
        lengths: Tensor | None,
        labeling: Labeling,
        loss: Tensor,
        mass: Tensor | None = None,
        evict: Callable[[Tensor, Tensor], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cache new labelings of the examples ``index``.

        Args:
            index: ``[R]`` int64.
            lengths: ``[R]`` int64, of the examples.
            labeling: ``[R, ...]``.
            loss: ``[R]``.
            mass: ``[R]`` float64; None for labelings without mass.
            evict: Called with the positions and slots whose labelings with mass are replaced; needed with ``mass``.

        Returns:
            The positions in ``index`` that were cached (all with mass are), and their slots.
        """
        sets = self.sets
        slots = sets.victims(index)
        held = torch.where(slots < sets.count[index], sets.mass[index, slots.clamp(max=self.capacity - 1)], 0.0)
        wanted = (held == 0.0) if mass is None else (held == 0.0) | (mass > 0.0)
        kept = wanted.nonzero().flatten()
        leaving = kept[held[kept] > 0.0]
        if len(leaving):
            assert evict is not None
            evict(leaving, slots[leaving])
        index, slots = index[kept], slots[kept]
        sets.clock += 1
        sets.write(index, slots, tree_map(lambda t: t[kept], labeling), loss[kept])
        sets.used[index, slots] = sets.clock
        if lengths is not None:
            sets.length[index] = lengths[kept]
        if mass is not None:
            sets.mass[index, slots] = mass[kept]
        return kept, slots

    def _evict(self, stored: _StoredLabelings, rows: Tensor, slots: Tensor) -> None:
        """Merge the labelings in ``slots`` of the batch's ``rows``, with their mass, into the rest."""
        sets, index = self.sets, stored.index[rows]
        mass, potentials = sets.mass[index, slots], stored.potentials.select(rows)
        target = tree_map(lambda t: t[rows], stored.target)
        held = sets.read(index, self.capacity, self._like(potentials))
        one = tree_map(lambda t: t[torch.arange(len(slots), device=slots.device), slots].unsqueeze(1), held)
        one = self.structure.resize(one, target)
        parts = self.structure.mean_difference(one, mass.unsqueeze(1), target, potentials)
        self.rest.add(index, potentials, parts, -torch.ones_like(mass))
        self.rest_mass[index] += mass
        self.rest_loss[index] += mass * sets.loss[index, slots] / self.num_examples
        self.mixed[index] = True
        sets.mass[index, slots] = 0.0


class _StoredLabelings(Stored):
    """The blocks of a batch; column 0 of the atoms is the rest, column c + 1 is slot c."""

    def __init__(self, storage: Labelings, index: Tensor, potentials: Potentials, target: Labeling) -> None:
        self.num_examples = storage.num_examples
        self.index, self.potentials, self.target = index, potentials.detach(), target
        self.lengths = potentials.lengths
        self._storage, sets = storage, storage.sets
        self._structure = storage.structure
        count = sets.count[index]
        self._columns = int(count.max())
        self._filled = torch.arange(self._columns, device=index.device) < count.unsqueeze(1)
        self._mass = sets.mass[index, : self._columns]
        self._loss = torch.where(self._filled, sets.loss[index, : self._columns], 0.0)
        self._rest_mass = storage.rest_mass[index]
        self._mixed = storage.mixed[index]
        self._gram: Tensor | None = None
        self._learned = True  # whether the Gram matrix has rows of cached labelings that the storage lacks
        self._found: OracleResult | None = None
        self._labelings: Labeling = None
        if self._columns:
            held = sets.read(index, self._columns, storage._like(potentials))
            empty = count == 0
            if bool(empty.any()):  # empty slots cannot be scored: copy the rows of another example
                donor = int((~empty).to(torch.int8).argmax())
                held = tree_map(lambda t: torch.where(_like_rows(empty, t), t[donor], t), held)
            self._labelings = self._structure.resize(held, target)
            if potentials.lengths is None:
                for had, has in zip(tree_tensors(held), tree_tensors(self._labelings), strict=True):
                    if had.shape != has.shape:
                        raise ValueError(
                            f"the blocks hold labelings of shape {list(had.shape[2:])}, and example {int(index[0])} "
                            f"came with {list(has.shape[2:])}: examples of different sizes need lengths, in every batch"
                        )
        self._rest = storage.rest.gather(index, self.potentials, target) if bool(self._mixed.any()) else None
        self._scores: Tensor | None = None

    @cached_property
    def psi(self) -> Parts:
        """``p(y_i) - mu_i`` of every block."""
        if self._columns:
            parts = self._structure.mean_difference(self._labelings, -self._mass, self.target, self.potentials)
        else:
            parts = {name: torch.zeros_like(t) for name, t in self.potentials.tensors.items()}
        return parts if self._rest is None else {name: t + self._rest.psi[name] for name, t in parts.items()}

    def inner(self, potentials: Potentials) -> Tensor:
        found = -(self._mass * self._relative(potentials)).sum(1) / self.num_examples
        return found if self._rest is None else found + self._rest.inner(potentials)

    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        return self._structure.mean_loss(self.psi, self.target, potentials)

    def _relative(self, potentials: Potentials) -> Tensor:
        """Scores of the cached labelings relative to the target, ``[B, C]``; 0 in empty slots."""
        if not self._columns:
            return self._mass
        scores = self._structure.relative_scores(self._labelings, self.target, potentials.detach())
        return torch.where(self._filled, scores, 0.0)

    def atoms(self, potentials: Potentials, losses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rest = self._rest_mass
        rest_score, rest_loss = torch.zeros_like(rest), torch.zeros_like(rest)
        if self._rest is not None:
            share = self.num_examples / rest.clamp(min=1e-300)
            there = self._mixed & (rest > 0.0)
            rest_score = torch.where(there, -self._rest.inner(potentials) * share, 0.0)
            rest_loss = torch.where(there, self._storage.rest_loss[self.index] * share, 0.0)
        return (
            torch.cat([rest.unsqueeze(1), self._mass], 1),
            torch.cat([rest_score.unsqueeze(1), self._relative(potentials)], 1),
            torch.cat([rest_loss.unsqueeze(1), self._loss], 1),
            torch.cat([(rest > 0.0).unsqueeze(1), self._filled], 1),
        )

    def lookup(self, labeling: Labeling) -> Tensor:
        same = self._filled
        if not self._columns:
            return torch.zeros_like(self.index)
        for held, wanted in zip(tree_tensors(self._labelings), tree_tensors(labeling), strict=True):
            same = same & (held == wanted.unsqueeze(1)).view(*same.shape, -1).all(2)
        return torch.where(same.any(1), same.to(torch.int8).argmax(1) + 1, 0)

    def cached(self, columns: Tensor) -> Labeling:
        rows = torch.arange(len(columns), device=columns.device)
        return tree_map(lambda t: t[rows, columns - 1], self._labelings)

    def _everything(self, found: OracleResult) -> Labeling:
        """Cached labelings and corner, ``[B, C + 1, ...]``."""
        corner = tree_map(lambda t: t.unsqueeze(1), found.labeling)
        if not self._columns:
            return corner
        pairs = zip(tree_tensors(self._labelings), tree_tensors(corner), strict=True)
        return tree_replace(corner, [torch.cat(pair, 1) for pair in pairs])

    def curvature(self, found: OracleResult, respond: Callable[[Parts], Parts]) -> Tensor:
        assert found.column is not None
        structure, sets, columns = self._structure, self._storage.sets, self._columns
        everything = self._everything(found)
        size, device = len(self.index), self.index.device
        gram = torch.zeros(size, columns + 2, columns + 2, dtype=torch.float64, device=device)
        unknown = torch.cat([self._filled, (found.column == 0).unsqueeze(1)], 1)
        if sets.gram is not None and columns:
            gram[:, 1:-1, 1:-1] = sets.gram[self.index, :columns, :columns]
            unknown[:, :-1] &= ~sets.known[self.index, :columns]
            self._learned = bool(unknown[:, :-1].any())
        rows = torch.arange(size, device=device)
        while bool(unknown.any()):
            has, pick = unknown.any(1), unknown.to(torch.int8).argmax(1)
            one = tree_map(lambda t, pick=pick: t[rows, pick].unsqueeze(1), everything)
            parts = structure.mean_difference(one, has.to(torch.float64).unsqueeze(1), self.target, self.potentials)
            answer = self.potentials.replace(respond(parts))
            row = structure.relative_scores(everything, self.target, answer)
            own, at = rows[has], pick[has] + 1
            gram[own, at, 1:] = row[has]
            gram[own, 1:, at] = row[has]
            unknown[rows, pick] = False
        if self._rest is not None:
            change = respond(self._rest.psi)
            share = torch.where(self._mixed & (self._rest_mass > 0.0), 1.0 / self._rest_mass.clamp(min=1e-300), 0.0)
            row = structure.relative_scores(everything, self.target, self.potentials.replace(change))
            row = -share.unsqueeze(1) * row
            gram[:, 0, 1:] = row
            gram[:, 1:, 0] = row
            gram[:, 0, 0] = share.square() * inner(self._rest.psi, change)
        self._gram = gram
        return gram

    def combine(self, change: Tensor | None, found: OracleResult) -> tuple[Parts, None]:
        assert change is not None
        self._found = found
        parts = self._structure.mean_difference(self._everything(found), change[:, 1:], self.target, self.potentials)
        if self._rest is not None:
            decay = torch.where(
                self._mixed & (self._rest_mass > 0.0), -change[:, 0] / self._rest_mass.clamp(min=1e-300), 0.0
            )
            rest = scale(self._rest.psi, decay)
            parts = {name: tensor + rest[name] for name, tensor in parts.items()}
        check_padding(parts, self.potentials)
        return parts, None

    def move(
        self,
        coefficients: Tensor,
        rows: Tensor,
        change: Tensor | None,
        parts: Parts,
        gradients: list[Tensor] | None,
    ) -> None:
        storage, sets, found, columns = self._storage, self._storage.sets, self._found, self._columns
        assert found is not None
        assert found.column is not None
        assert change is not None
        index = self.index[rows]
        moved = coefficients[rows].unsqueeze(1) * change[rows]
        self._move_rest(rows, moved[:, 0])
        if columns:
            sets.mass[index, :columns] = (self._mass[rows] + moved[:, 1:-1]).clamp_(min=0.0)
        column = found.column[rows]
        sets.clock += 1
        old = column > 0
        sets.used[index[old], column[old] - 1] = sets.clock
        if self._gram is not None:
            sets.keep_gram(storage.parameters[0].dtype)
            assert sets.gram is not None
            if columns and self._learned:
                sets.gram[index, :columns, :columns] = self._gram[rows, 1:-1, 1:-1].to(sets.gram.dtype)
                sets.known[index, :columns] = self._filled[rows]
        new = (~old).nonzero().flatten()
        if not len(new):
            return
        at = rows[new]
        kept, slots = storage._insert(
            self.index[at],
            None if self.lengths is None else self.lengths[at],
            tree_map(lambda t: t[at], found.labeling),
            found.loss[at],
            moved[new, -1].clamp(min=0.0),
            lambda leaving, slots: storage._evict(self, at[leaving], slots),
        )
        if self._gram is not None and len(kept):
            assert sets.gram is not None
            own, at = index[new[kept]], at[kept]
            row = self._gram[at, -1, 1:].to(sets.gram.dtype)
            if columns:
                sets.gram[own, slots, :columns] = row[:, :-1]
                sets.gram[own, :columns, slots] = row[:, :-1]
            sets.gram[own, slots, slots] = row[:, -1]
            sets.known[own, slots] = True

    def _move_rest(self, rows: Tensor, moved: Tensor) -> None:
        storage, index = self._storage, self.index[rows]
        held = self._rest_mass[rows]
        left = (held + moved).clamp_(min=0.0)
        storage.rest_mass[index] = left
        if self._rest is None:
            return
        # Multiplied anew, not changed by a difference: psi must stay mass times a point of the polytope near mass 0.
        there = (self._mixed[rows] & (held > 0.0)).nonzero().flatten()
        ratio, own = left[there] / held[there], rows[there]
        storage.rest_loss[index[there]] *= ratio
        psi = {name: tensor[own] for name, tensor in self._rest.psi.items()}
        storage.rest.write(index[there], self.potentials.select(own), scale(psi, ratio))


def _like_rows(mask: Tensor, tensor: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (tensor.ndim - 1))
