"""The interface of a kind of factor graph in GDMM."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.batch import Batch, device_of
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.states import Numbers, Stateful, check_entries
from torchssvm.dual.checks import check_batch, check_targets, digest_examples
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState
from torchssvm.kinds.hidden import Hidden
from torchssvm.solvers.exact_pass import every_example
from torchssvm.solvers.gdmm.blocks import AWAY, PROJECT, Options
from torchssvm.solvers.gdmm.pairs import PairWeights
from torchssvm.solvers.gdmm.ragged import Ragged, as_tensors, from_tensors
from torchssvm.solvers.gdmm.rules import BlockRule, BruteForce, Penalty, SortedOracle
from torchssvm.solvers.gdmm.sorted_entries import COUNT, VISITED, from_state, grown
from torchssvm.solvers.gdmm.sorted_entries import state as state_of_entries
from torchssvm.solvers.gdmm.training_set import TrainingSet


class DualPoint(NamedTuple):
    """The terms of the dual objective of a consistent point mu."""

    loss: float  # ``(1/n) sum <delta, mu>``
    squared: float  # ``|w(mu)|^2``

    def shrinking(self, lam: float) -> float:
        """The share of this point in its best mixture with the point of zero weights, 0 to 1."""
        return 1.0 if self.loss >= lam * self.squared else max(self.loss / (lam * self.squared), 0.0)

    def value(self, lam: float) -> float:
        """The dual objective of the best mixture."""
        share = self.shrinking(lam)
        return share * self.loss - share**2 * lam / 2 * self.squared


class Rounded(NamedTuple):
    """Two consistent dual points near the iterate; the same where the local polytope is the hull of outputs."""

    mean: DualPoint  # a mean of outputs: its dual value bounds the problem
    relaxed: DualPoint  # a point of the local polytope: its dual value bounds the relaxation


class Hinges(NamedTuple):
    """Structured hinges of all examples."""

    value: np.ndarray  # [n] float64, over outputs; an upper bound where decoding was not exact
    relaxed: np.ndarray  # [n] float64, upper bounds of the hinges over the local polytope
    exact: bool  # whether every ``value`` is the hinge itself


class Problem(Stateful):
    """Duals of all factors, the weights that follow from them, and the training data.

    A subclass names the classes of heads and of the structure that it trains, and GDMM finds it by them. It is made of
    the head, its training problem, the batches, and what GDMM's ``oracle`` is.
    """

    state_name = "problem"
    kind: ClassVar[str]  # in checkpoints

    of_head: ClassVar[dict[type, type[Problem]]] = {}  # by the class of the head; subclasses may compute otherwise
    structure: ClassVar[type]  # the class of the head's structure

    head: Any
    dual: DualState  # the training problem: n, lam, structure, parameters; its blocks are not used
    targets: Tensor  # [n] int64, digests of the targets
    data: TrainingSet
    duals: Any  # a named tuple of arrays and of lists, Ragged
    pairs: PairWeights
    default_penalty: float  # the default initial penalty
    default_rule: ClassVar[type[Penalty]] = Penalty  # of the penalty
    num_sides: int  # number of pairs of a variable and a factor
    has_relaxation: bool  # whether the local polytope is larger than the hull of the outputs
    weights: np.ndarray  # [F + rows, K]
    num_features: int  # F
    matrix: ClassVar[str]  # the head's parameter with a row of ``weights`` for each feature
    rows: ClassVar[tuple[str, ...]]  # those with one row each, behind them, where the head has them
    table: ClassVar[str]  # the one of pairs

    def __init_subclass__(cls, heads: Iterable[type] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.of_head.update(dict.fromkeys(heads, cls))

    @abstractmethod
    def __init__(
        self, head: Any, dual: DualState, batches: Iterable[Batch], oracle: SortedOracle | BruteForce | None
    ) -> None: ...

    @classmethod
    def check_head(cls, head: Any) -> None:
        """Raise TypeError for settings of the head that the factors do not have."""

    @abstractmethod
    def begin(self, order: np.ndarray, greedy: bool) -> tuple[Any, int]:
        """Make room for visits; returns scratch arrays and the most pairs that the visit of one example may add."""

    @abstractmethod
    def visit_some(self, order: np.ndarray, done: int, passes: int, options: Options, scratch: Any) -> int:
        """Visit the examples ``order[done:]`` until one needs more room among the pairs; returns how many are done."""

    @cached_property
    def _laid_out(self) -> dict[str, Hidden]:
        return {}

    def in_memory(self, name: str) -> Any:
        """The tuple ``data``, ``pairs`` or ``duals`` for kernels, laid out anew only where it was replaced."""
        value, kept = getattr(self, name), self._laid_out.get(name)
        if kept is None or kept.plain is not value:
            kept = self._laid_out[name] = Hidden(value)
        return kept.arguments

    def visit(self, order: np.ndarray, rule: BlockRule, rho: float, passes: int) -> np.ndarray:
        """Visit the examples ``order``, one after another, after ``passes`` passes.

        Returns:
            ``[3]``: squared moves of the variables, once for each of their factors, entries the factorwise oracle
            looked at, and its calls.
        """
        scale = self.dual.lam * self.dual.num_examples
        options = Options(scale, rho, AWAY if rule.away else PROJECT, rule.greedy)
        scratch, new = self.begin(order, rule.greedy)
        done, before = 0, int(self.pairs.entries.counters[VISITED])
        while done < len(order):
            done = self.visit_some(order, done, passes, options, scratch)
            if done < len(order):
                entries = self.pairs.entries
                wanted = max(2 * len(entries.value), int(entries.counters[COUNT]) + new)
                self.pairs = self.pairs._replace(entries=grown(entries, wanted))
        scratch.totals[1] += int(self.pairs.entries.counters[VISITED]) - before
        return scratch.totals

    @abstractmethod
    def update_multipliers(self, step: float) -> np.ndarray:
        """``multiplier += step (M pi_f - pi_j)``, everywhere.

        Returns:
            ``[5]``: sum of squared excesses, sum and largest of the total variations ``1/2 |M pi_f - pi_j|_1``, and
            sums of the squares of ``pi_j`` and of the new multipliers.
        """

    @abstractmethod
    def current_weights(self) -> list[Tensor]:
        """w(pi), one tensor for each parameter."""

    def _as_parameters(self, pairs: Tensor) -> list[Tensor]:
        """The weights in the order of ``head.parameters()``."""
        blocks = torch.from_numpy(self.weights).split([self.num_features, *[1] * len(self.rows)])
        named = {self.matrix: self.head.by_feature(blocks[0]), self.table: pairs}
        named |= {name: row[0] for name, row in zip(self.rows, blocks[1:], strict=True)}
        return [named[name] for name, _ in self.head.named_parameters()]

    def _from_parameters(self, parameters: list[Tensor]) -> tuple[np.ndarray, Tensor]:
        """Weights like ``weights``, and the pairs."""
        names = [name for name, _ in self.head.named_parameters()]
        named = dict(zip(names, (parameter.detach() for parameter in parameters), strict=True))
        weights = np.zeros_like(self.weights)
        weights[: self.num_features] = self.head.by_feature(named[self.matrix]).numpy()
        for place, name in enumerate(self.rows, self.num_features):
            if name in named:
                weights[place] = named[name].numpy()
        return weights, named[self.table]

    @abstractmethod
    def refresh(self) -> float:
        """Recompute the weights from the duals; returns their drift."""

    @abstractmethod
    def rounded(self) -> Rounded:
        """Consistent dual points."""

    @abstractmethod
    def hinges(self, parameters: list[Tensor]) -> Hinges:
        """Structured hinges at these weights."""

    @abstractmethod
    def blocks(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Any, Parts, Tensor]]:
        """Index, potentials, ``psi = p(y) - mu`` and ``l_i`` of every batch, for a :class:`DualState`.

        mu is the mean of outputs of :meth:`rounded`.
        """

    def examples(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Potentials]]:
        """Index and potentials of batches with every example once and the targets of the duals, or ValueError."""
        device = device_of(self.head)
        check, n = partial(check_batch, self.dual), self.dual.num_examples
        for batch, potentials, index in every_example(self.head, batches, device, check, n):
            target = self.dual.structure.check_target(batch.y, potentials)
            if not torch.equal(digest_examples(target, potentials), self.targets[index]):
                raise ValueError("batches have other targets than GDMM was made with: give the same training set")
            yield index, potentials

    def hand_over(self, batches: Iterable[Batch], storage: MeanParts, *, certified: float) -> DualState:
        """A dual at a mean of outputs near the iterate, shrunk towards zero weights where that is better.

        Writes the dual's weights to the head, after everything that may fail. The weights are summed from the features
        of ``batches``, and a new ``storage`` gets the blocks; warns if the dual is below ``certified``, the best one.
        Raises ValueError for batches that do not fit, or whose features are not finite, and MemoryError for blocks that
        do not.
        """
        dual = DualState.for_head(self.head, self.dual.num_examples, self.dual.lam, storage=storage)
        weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
        for index, potentials, psi, losses in self.blocks(batches):
            storage.gather(index, potentials)  # checks the memory before blocks are made
            storage.add(index, potentials, psi)
            dual.loss[index] = losses
            parts = storage.contribution(storage.gather(index, potentials), potentials)
            for total, part in zip(weights, parts, strict=True):
                total += part
        if not all(bool(torch.isfinite(total).all()) for total in weights):
            raise ValueError("batches hold features that are not finite, or too large: scale them")
        check_targets(dual, self.targets)
        point = DualPoint(float(dual.loss.sum()), squared_norm(weights))
        factor, value = point.shrinking(dual.lam), point.value(dual.lam)
        rounding = 1e3 * torch.finfo(dual.parameters[0].dtype).eps
        if value < certified - rounding * (1.0 + certified):
            warn(
                f"the dual value is {value:.6g}, below GDMM's best certificate {certified:.6g}: BCFW needs some passes "
                "to recover. Load a saved state_dict() to go on with GDMM instead"
            )
        storage.rescale(factor)
        dual.loss *= factor
        for total in weights:
            total *= factor
        dual.steps = dual.moved = 1  # marks the dual as not new, so that its weights are kept
        dual.set_weights(weights)
        return dual

    def _entries(self) -> dict[str, Any]:
        duals = {
            name: as_tensors(value) if isinstance(value, Ragged) else torch.from_numpy(value.copy())
            for name, value in self.duals._asdict().items()
        }
        return {
            "kind": self.kind,
            "targets": self.targets.clone(),
            "weights": torch.from_numpy(self.weights.copy()),
            "ordered": self.pairs.ordered,
            "dense": torch.from_numpy(self.pairs.dense.copy()),
            "entries": state_of_entries(self.pairs.entries),
            "duals": duals,
        }

    def _check_own(self, state: dict[str, Any]) -> None:
        weights = Numbers(torch.from_numpy(self.weights).dtype, self.weights.shape)
        entries = {name: state[name] for name in ("kind", "weights")}
        check_entries(entries, {"kind": self.kind, "weights": weights}, "problem")
        if not torch.equal(state["targets"], self.targets):
            raise ValueError("the checkpoint was trained on other targets: load it with its training set")
        if (ordered := state["ordered"]) != self.pairs.ordered:
            oracle = "SortedOracle()" if ordered else "BruteForce()"
            raise ValueError(f"the checkpoint is of oracle={oracle}: make GDMM with the oracle that wrote it")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"].numpy().copy()
        dense, entries = state["dense"].numpy().copy(), from_state(state["entries"])
        self.pairs = self.pairs._replace(dense=dense, entries=entries)
        duals = state["duals"].items()
        duals = {name: from_tensors(v) if isinstance(v, dict) else v.numpy().copy() for name, v in duals}
        self.duals = self.duals._replace(**duals)
