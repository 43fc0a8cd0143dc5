"""The storage by labelings: active sets, and the mean parts of labelings that were merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_whole
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.decoding import Labeling, OracleResult, as_decoding
from torchssvm.core.operators import known, on_host, pick, read_together, upload
from torchssvm.core.potentials import Parts, Potentials, inner, scale
from torchssvm.core.states import Numbers, Stateful, check_entries
from torchssvm.core.structure import check_padding
from torchssvm.dual.active_sets import ActiveSets
from torchssvm.dual.mean_parts import MeanParts, other_length
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

    Attributes:
        sets: The labelings and their mass.
        rest: psi of the labelings that were merged.
        rest_mass: ``[n]`` float64, the mass of the rest.
        rest_loss: ``[n]`` float64, ``1/n`` times mass times loss of the rest, as l_i.
        mixed: ``[n]`` bool, whether the rest holds merged labelings besides the target.

    Raises:
        ValueError: ``capacity`` is less than 1.

    Example:
        >>> solver = Solver(storage=Labelings(capacity=5), direction=Corrective())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    keeps_labelings = True
    per_example = ("rest_mass", "rest_loss", "mixed")

    def __init__(self, capacity: int = 20) -> None:
        self.capacity = check_whole(capacity, "capacity")
        self.wants_curvature = False
        self._template: Labeling | None = None

    @override
    def bind(self, *problem: Any) -> None:
        super().bind(*problem)
        self.rest = MeanParts()
        self.rest.bind(*problem)
        device = self._device
        self.sets = ActiveSets(len(self.own), self.capacity, self.structure.padding, self.parameters[0])
        self.rest_mass = torch.ones(len(self.own), dtype=torch.float64, device=device)
        self.rest_loss = torch.zeros(len(self.own), dtype=torch.float64, device=device)
        self.mixed = torch.zeros(len(self.own), dtype=torch.bool, device=device)

    def labeling_like(self, potentials: Potentials, target: Labeling = None) -> Labeling:
        """A labeling of one example, decoded once: a template for sizes and dtypes."""
        if self._template is None:
            targets = () if target is None else (tree_map(lambda tensor: tensor[:1], target),)
            like = vars(type(self.structure)).get("_target_is_labeling", False)  # a subclass may have other labelings
            if isinstance(target, Tensor) and like:
                self._template = target[:1].clone()
            else:
                one = potentials.detach().select(torch.zeros(1, dtype=torch.int64, device=potentials.device))
                one = one.replace({name: t.to(self.parameters[0].dtype) for name, t in one.tensors.items()})
                decode = self.structure.augmented_argmax if targets else self.structure.argmax
                self._template = as_decoding(decode(one, *targets)).labeling
        return self._template

    def rescale(self, factor: float) -> None:
        """``psi_i *= factor``; the mass that labelings lose goes to the target."""
        sets = self.sets
        sets.mass *= factor
        self.rest_loss *= factor
        self.rest.rescale(factor)
        self.rest_mass = factor * self.rest_mass + (1.0 - factor)

    @override
    def unbound(self) -> Labelings:
        return Labelings(self.capacity)

    def change_number(self, share: float) -> None:
        """The loss of the rest has the factor ``1/n``."""
        self.rest_loss *= share

    @override
    def widen(self, potentials: Potentials) -> None:
        self.rest.widen(potentials)

    def support(self) -> Tensor:
        """The number of labelings with mass in each block, ``[n]`` int64; the rest is not counted."""
        return (self.sets.mass > 0.0).sum(1)

    @override
    def nbytes(self) -> int:
        rest = [self.rest_mass, self.rest_loss, self.mixed] if self.sets.labelings else []
        return self.sets.nbytes() + self.rest.nbytes() + sum(t.numel() * t.element_size() for t in rest)

    @override
    def to(self, device: torch.device) -> None:
        self.sets.to(device)
        self.rest.to(device)
        self.rest_mass, self.rest_loss = self.rest_mass.to(device), self.rest_loss.to(device)
        self.mixed = self.mixed.to(device)

    @override
    def keep_curvature(self) -> None:
        self.wants_curvature = True

    def estimate(self, potentials: Potentials, target: Labeling = None) -> int:
        """Bytes for all examples with full active sets, if their labelings are as long as this batch's."""
        gram = self.parameters[0].element_size() if self.wants_curvature else 0
        each = ActiveSets.bytes_each(self.labeling_like(potentials, target), self.capacity, gram)
        return len(self.own) * (each + 8 + 8 + 1)

    @override
    def gather(self, index: Tensor, potentials: Potentials, target: Labeling) -> Stored:
        if not self.sets.labelings:
            self.check_memory(
                potentials, target, "Labelings(capacity=...) with a smaller capacity takes less, and so may MeanParts()"
            )
        sets = self.sets
        count, before, mixed = read_together(sets.count[index], sets.length[index], self.mixed[index])
        if not self.rest.nbytes() and bool((count == self.capacity).any()):
            self.rest.check_memory(
                potentials, target, "a larger capacity of Labelings() needs no room for merged labelings"
            )
        if potentials.lengths is not None:
            lengths = on_host(potentials.lengths)
            if bool((wrong := (before != lengths) & (before > 0)).any()):
                row = int(wrong.nonzero()[0])
                raise other_length(int(index[row]) + self.own.start, int(lengths[row]), int(before[row]))
        return StoredLabelings(self, index, potentials, target, count, upload(mixed, index.device))

    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if an example is in two batches, as both would start from the same masses."""
        seen: set[int] = set()
        for batch, its in zip(batches, rows, strict=True):
            assert isinstance(batch, StoredLabelings)
            examples = set(on_host(pick(batch.index, its)).tolist())
            if twice := sorted(seen & examples):
                raise ValueError(f"examples {twice[:5]} came in two batches of one step: use storage=MeanParts()")
            seen |= examples

    def remember(self, stored: Stored, corner: OracleResult) -> Callable[[], None] | None:
        """Cache the corners of an exact pass, in free slots and in slots without mass."""
        assert isinstance(stored, StoredLabelings)
        columns = stored.lookup(corner.labeling)
        new = upload((on_host(columns) == 0).nonzero().flatten(), columns.device)
        if not len(new):
            return None
        index, lengths = pick(stored.index, new), None if stored.lengths is None else stored.lengths[new]
        labeling, loss = tree_map(lambda t: t[new], corner.labeling), corner.loss[new]

        def keep() -> None:
            self.sets.insert(index, lengths, labeling, loss)

        return keep

    def forget_features(self) -> None:
        """Mark the inner products as unknown; they were computed from the old features."""
        self.sets.known.fill_(False)

    def _nested(self) -> dict[str, Stateful]:
        return {"sets": self.sets, "rest": self.rest}

    def _entries(self) -> dict[str, Any]:
        return {"kind": "labelings", **{name: getattr(self, name).clone() for name in self.per_example}}

    def _check_own(self, state: dict[str, Any]) -> None:
        n = (len(self.own),)
        wanted = {
            "kind": "labelings",
            "sets": dict,
            "rest": dict,
            "rest_mass": Numbers(torch.float64, n, 0.0),
            "rest_loss": Numbers(torch.float64, n),
            "mixed": Numbers(torch.bool, n),
        }
        check_entries(state, wanted, "storage")
        for name, each in self._nested().items():
            each.check_state(state[name])

    def _restore_own(self, state: dict[str, Any]) -> None:
        for name in self.per_example:
            setattr(self, name, state[name].to(self._device, copy=True))
        for name, each in self._nested().items():
            each.restore(state[name])


class StoredLabelings(Stored):
    """The blocks of a batch; column 0 of the atoms is the rest, column c + 1 is slot c.

    ``count`` ``[B]`` int64 on the CPU are the numbers of labelings, ``mixed`` ``[B]`` are rows of ``storage.mixed``.
    """

    def __init__(
        self, storage: Labelings, index: Tensor, potentials: Potentials, target: Labeling, count: Tensor, mixed: Tensor
    ) -> None:
        self.num_examples = storage.num_examples
        self.index, self.potentials, self.target = index, potentials.detach(), target
        self.lengths = potentials.lengths
        self._storage, sets = storage, storage.sets
        self._structure = storage.structure
        self._columns = int(count.max())
        self._filled = upload(torch.arange(self._columns) < count.unsqueeze(1), index.device)
        self._mass = sets.mass[index, : self._columns]
        self._loss = torch.where(self._filled, sets.loss[index, : self._columns], 0.0)
        self._rest_mass = storage.rest_mass[index]
        self._mixed = mixed
        self._gram: Tensor | None = None
        self._learned = True  # whether the storage lacks some rows of the Gram matrix
        self._corner: OracleResult | None = None
        self._labelings: Labeling = None
        self._some: Tensor | None = None  # rows with labelings, if other rows have none and are not scored
        if self._columns:
            stored = sets.read(index, self._columns, storage.labeling_like(potentials, target))
            empty = count == 0
            if bool(empty.any()):
                self._some = upload((~empty).nonzero().flatten(), index.device)
            self._labelings = self._structure.resize(stored, target)
            sizes = [[list(t.shape[2:]) for t in tree_tensors(tree)] for tree in (stored, self._labelings)]
            if potentials.lengths is None and sizes[0] != sizes[1]:
                raise ValueError(
                    f"labelings of example {int(index[0])} are {sizes[1]}, and were {sizes[0]}: examples of different "
                    "sizes need lengths"
                )
        self._rest = storage.rest.gather(index, self.potentials, target) if bool(on_host(mixed).any()) else None
        self._scores: Tensor | None = None

    @cached_property
    def psi(self) -> Parts:  # type: ignore[override]
        """``p(y_i) - mu_i`` of every block."""
        if self._columns and self._some is None:
            parts = self._structure.mean_difference(self._labelings, -self._mass, self.target, self.potentials)
        else:
            parts = {name: torch.zeros_like(t) for name, t in self.potentials.tensors.items()}
        if self._columns and self._some is not None:
            labelings, target, potentials = self._rows_with_labelings(self.potentials)
            some = self._structure.mean_difference(labelings, -self._mass[self._some], target, potentials)
            parts = {name: tensor.index_copy(0, self._some, some[name]) for name, tensor in parts.items()}
        return parts if self._rest is None else {name: t + self._rest.psi[name] for name, t in parts.items()}

    def _rows_with_labelings(self, potentials: Potentials) -> tuple[Labeling, Labeling, Potentials]:
        """Labelings, target and potentials of the rows that have labelings."""
        assert self._some is not None
        rows = self._some
        labelings, target = (tree_map(lambda t: t[rows], several) for several in (self._labelings, self.target))
        return labelings, target, potentials.select(rows)

    @override
    def inner(self, potentials: Potentials) -> Tensor:
        products = -(self._mass * self._relative(potentials)).sum(1) / self.num_examples
        return products if self._rest is None else products + self._rest.inner(potentials)

    @override
    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        return self._structure._mean_loss(self.psi, self.target, potentials)

    def _relative(self, potentials: Potentials) -> Tensor:
        """Scores of the cached labelings relative to the target, ``[B, C]``; 0 in empty slots."""
        if not self._columns:
            return self._mass
        if self._some is None:
            scores = self._structure.relative_scores(self._labelings, self.target, potentials.detach())
        else:
            labelings, target, potentials = self._rows_with_labelings(potentials.detach())
            some = self._structure.relative_scores(labelings, target, potentials)
            scores = some.new_zeros(self._filled.shape).index_copy(0, self._some, some)
        return torch.where(self._filled, scores, 0.0)

    @override
    def atoms(self, potentials: Potentials, losses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rest = self._rest_mass
        rest_score, rest_loss = torch.zeros_like(rest), torch.zeros_like(rest)
        if self._rest is not None:
            share = self.num_examples / rest.clamp(min=1e-300)
            present = self._mixed & (rest > 0.0)
            rest_score = torch.where(present, -self._rest.inner(potentials) * share, 0.0)
            rest_loss = torch.where(present, self._storage.rest_loss[self.index] * share, 0.0)
        return (
            torch.cat([rest.unsqueeze(1), self._mass], 1),
            torch.cat([rest_score.unsqueeze(1), self._relative(potentials)], 1),
            torch.cat([rest_loss.unsqueeze(1), self._loss], 1),
            torch.cat([(rest > 0.0).unsqueeze(1), self._filled], 1),
        )

    @override
    def lookup(self, labeling: Labeling) -> Tensor:
        same = self._filled
        if not self._columns:
            return torch.zeros_like(self.index)
        for stored, wanted in zip(tree_tensors(self._labelings), tree_tensors(labeling), strict=True):
            same = same & (stored == wanted.unsqueeze(1)).view(*same.shape, -1).all(2)
        return torch.where(same.any(1), same.to(torch.int8).argmax(1) + 1, 0)

    @override
    def cached(self, columns: Tensor) -> Labeling:
        rows = torch.arange(len(columns), device=columns.device)
        return tree_map(lambda t: t[rows, columns - 1], self._labelings)

    def _everything(self, result: OracleResult) -> Labeling:
        """Cached labelings and corner, ``[B, C + 1, ...]``."""
        corner = tree_map(lambda t: t.unsqueeze(1), result.labeling)
        if not self._columns:
            return corner
        stored = tree_tensors(self._labelings)
        if self._some is not None:  # empty slots have no mass, but must have labelings that can be scored
            none = ~self._filled.any(1)
            masks = [none.view(-1, *[1] * (t.ndim - 1)) for t in stored]
            stored = [torch.where(m, c, t) for m, t, c in zip(masks, stored, tree_tensors(corner), strict=True)]
        pairs = zip(stored, tree_tensors(corner), strict=True)
        return tree_replace(corner, [torch.cat(pair, 1) for pair in pairs])

    def curvature(self, corner: OracleResult, respond: Callable[[Parts], Parts]) -> Tensor:
        """Known inner products from the storage; one call of ``respond`` for each missing row."""
        assert corner.column is not None
        structure, sets, columns = self._structure, self._storage.sets, self._columns
        everything = self._everything(corner)
        size, device = len(self.index), self.index.device
        gram = torch.zeros(size, columns + 2, columns + 2, dtype=torch.float64, device=device)
        column, computed = read_together(corner.column, sets.known[self.index, :columns])
        known(corner.column, column)
        unknown = torch.cat([on_host(self._filled), (column == 0).unsqueeze(1)], 1)
        if sets.gram is not None and columns:
            gram[:, 1:-1, 1:-1] = sets.gram[self.index, :columns, :columns]
            unknown[:, :-1] &= ~computed
            self._learned = bool(unknown[:, :-1].any())
        rows = torch.arange(size)
        while bool(unknown.any()):
            has, first = unknown.any(1), unknown.to(torch.int8).argmax(1)
            chosen = upload(rows, device), upload(first, device)
            one = tree_map(lambda t, chosen=chosen: t[chosen].unsqueeze(1), everything)
            mass = upload(has.to(torch.float64), device)
            parts = structure.mean_difference(one, mass.unsqueeze(1), self.target, self.potentials)
            answer = self.potentials.replace(respond(parts))
            row = structure.relative_scores(everything, self.target, answer)
            blocks, at = upload(rows[has], device), upload(first[has] + 1, device)
            gram[blocks, at, 1:] = row[blocks]
            gram[blocks, 1:, at] = row[blocks]
            unknown[rows, first] = False
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

    def combine(self, change: Tensor | None, corner: OracleResult) -> tuple[Parts, None]:
        """Labelings, corner and rest, weighted by ``change``."""
        assert change is not None
        self._corner = corner
        parts = self._structure.mean_difference(self._everything(corner), change[:, 1:], self.target, self.potentials)
        if self._rest is not None:
            decay = torch.where(
                self._mixed & (self._rest_mass > 0.0), -change[:, 0] / self._rest_mass.clamp(min=1e-300), 0.0
            )
            rest = scale(self._rest.psi, decay)
            parts = {name: tensor + rest[name] for name, tensor in parts.items()}
        check_padding(parts, self.potentials)
        return parts, None

    def move(
        self, coefficients: Tensor, rows: Tensor, change: Tensor | None, parts: Parts, gradients: list[Tensor] | None
    ) -> None:
        """Move the mass, and cache the corner."""
        sets, corner, columns = self._storage.sets, self._corner, self._columns
        assert corner is not None
        assert corner.column is not None
        assert change is not None
        index = pick(self.index, rows)
        moved = coefficients[rows].unsqueeze(1) * change[rows]
        self._move_rest(rows, moved[:, 0])
        if columns:
            sets.mass[index, :columns] = (self._mass[rows] + moved[:, 1:-1]).clamp_(min=0.0)
        on_host(corner.column)
        column = pick(corner.column, rows)
        sets.clock += 1
        cached = on_host(column) > 0
        old = upload(cached.nonzero().flatten(), index.device)
        sets.used[index[old], column[old] - 1] = sets.clock
        if self._gram is not None:
            sets.keep_gram()
            assert sets.gram is not None
            if columns and self._learned:
                sets.gram[index, :columns, :columns] = self._gram[rows, 1:-1, 1:-1].to(sets.gram.dtype)
                sets.known[index, :columns] = self._filled[rows]
        new = upload((~cached).nonzero().flatten(), index.device)
        if not len(new):
            return
        at = pick(rows, new)
        kept, slots = sets.insert(
            pick(self.index, at),
            None if self.lengths is None else self.lengths[at],
            tree_map(lambda t: t[at], corner.labeling),
            corner.loss[at],
            moved[new, -1].clamp(min=0.0),
            lambda leaving, slots: self._evict(pick(at, leaving), slots),
        )
        if self._gram is not None and len(kept):
            assert sets.gram is not None
            examples, at = index[new[kept]], at[kept]
            row = self._gram[at, -1, 1:].to(sets.gram.dtype)
            if columns:
                sets.gram[examples, slots, :columns] = row[:, :-1]
                sets.gram[examples, :columns, slots] = row[:, :-1]
            sets.gram[examples, slots, slots] = row[:, -1]
            sets.known[examples, slots] = True

    def _move_rest(self, rows: Tensor, moved: Tensor) -> None:
        storage, index = self._storage, pick(self.index, rows)
        before = self._rest_mass[rows]
        left = (before + moved).clamp_(min=0.0)
        storage.rest_mass[index] = left
        if self._rest is None:
            return
        # Scaled, not changed by a difference: near mass 0, psi must still be mass times a point of the polytope.
        some = upload(on_host(self._mixed[rows] & (before > 0.0)).nonzero().flatten(), rows.device)
        ratio, chosen = left[some] / before[some], pick(rows, some)
        storage.rest_loss[index[some]] *= ratio
        psi = {name: tensor[chosen] for name, tensor in self._rest.psi.items()}
        storage.rest.write(index[some], self.potentials.select(chosen), scale(psi, ratio))

    def _evict(self, rows: Tensor, slots: Tensor) -> None:
        """Merge the labelings in ``slots`` of ``rows``, with their mass, into the rest."""
        storage, sets, index = self._storage, self._storage.sets, pick(self.index, rows)
        mass, potentials = sets.mass[index, slots], self.potentials.select(rows)
        target = tree_map(lambda t: t[rows], self.target)
        stored = sets.read(index, storage.capacity, storage.labeling_like(potentials, target))
        one = tree_map(lambda t: t[torch.arange(len(slots), device=slots.device), slots].unsqueeze(1), stored)
        one = self._structure.resize(one, target)
        parts = self._structure.mean_difference(one, mass.unsqueeze(1), target, potentials)
        storage.rest.add(index, potentials, parts, -torch.ones_like(mass))
        storage.rest_mass[index] += mass
        storage.rest_loss[index] += mass * sets.loss[index, slots] / self.num_examples
        storage.mixed[index] = True
        sets.mass[index, slots] = 0.0
