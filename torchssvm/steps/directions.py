"""Directions, rules of the oracle, and orders of visits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import as_number, check_number, check_object, check_whole
from torchssvm.core.operators import read_together, upload
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage
from torchssvm.steps.numba import AWAY, CORRECTIVE, FRANK_WOLFE, HYBRID, PAIRWISE, choose_each

if TYPE_CHECKING:
    from torchssvm.dual.state import DualState


class OracleRule(Protocol):
    """Decides for which blocks of a batch the max oracle is called."""

    needs_labelings: bool
    """Whether the rule reads cached labelings; it then needs ``storage=Labelings()``."""

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Blocks for which the oracle is called, ``[B]`` bool.

        Args:
            gaps: ``[B]`` float64, block gaps towards the best cached labeling; -inf if none is cached.
            index: ``[B]`` int64, the examples.
        """
        ...


class MaxOracle:
    """Always decode.

    Example:
        >>> certificate = solve(LinearMulticlass(4, 3), data, lam=0.1, solver=Solver(oracle=MaxOracle()))
        >>> certificate.relative_gap <= 0.01
        True
    """

    needs_labelings = False

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Everywhere."""
        return torch.ones_like(index, dtype=torch.bool)

    def __repr__(self) -> str:
        return "MaxOracle()"


class CacheOracle:
    """Decode only if the block gap of the best cached labeling is small ([G16] section 3.3, Algorithm 5).

    With g_i the block's gap at its last oracle call, and g the last exact gap, the cached labeling is used if its own
    block gap is at least ``max(factor g_i, floor g / n)``. Exact passes refresh g_i and g, and fill the cache.

    Args:
        factor: F, the local criterion.
        floor: nu, the global criterion; convergence needs it positive ([G16] Theorem 3).

    Raises:
        ValueError: An argument is negative or not finite.
        TypeError: An argument is not a number.

    Example:
        >>> solver = Solver(oracle=CacheOracle(factor=0.5), storage=Labelings())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    needs_labelings = True

    def __init__(self, factor: float = 0.25, floor: float = 0.01) -> None:
        self.factor = check_number(factor, "factor", 0.0)
        self.floor = check_number(floor, "floor", 0.0)

    def misses(self, gaps: Tensor, index: Tensor, dual: DualState) -> Tensor:
        """Where the best cached labeling's gap is below the threshold, or not positive."""
        # 0 * inf would be nan where g_i is unknown.
        threshold = self.factor * dual.oracle_gaps[index] if self.factor > 0.0 else torch.zeros_like(gaps)
        return (gaps < threshold.clamp(min=self.least(dual))) | (gaps <= 0.0)

    def least(self, dual: DualState) -> float:
        """``floor g / n``; 0 before the first exact pass."""
        known = math.isfinite(dual.certified_gap)
        return self.floor * dual.certified_gap / dual.num_examples if known else 0.0

    def __repr__(self) -> str:
        return f"CacheOracle(factor={self.factor:g}, floor={self.floor:g})"


class Atoms:
    """The blocks of a batch as distributions over a few atoms, scored at the current weights.

    Column 0 is the *rest*: the part of the block that is not kept as labelings, one point of the marginal polytope;
    without labelings it is the whole block. The next columns are the cached labelings, and the last one is the corner
    of the max oracle, unless it is cached.

    Attributes:
        mass: ``[B, M]`` float64, the dual distribution alpha_i over the atoms; rows sum to 1.
        scores: ``[B, M]`` float64, ``<p(y) - p(y_i), theta_i>`` of every atom.
        losses: ``[B, M]`` float64, L_i of every atom.
        valid: ``[B, M]`` bool, which columns are atoms of this block.
        hinges: ``[B, M]`` float64, ``scores + losses``; the dual grows fastest towards the largest.
        corner: ``[B]`` int64, the column of the corner.
        num_examples: n.
    """

    __slots__ = ("_curvature", "corner", "hinges", "losses", "mass", "num_examples", "scores", "valid")

    def __init__(
        self,
        mass: Tensor,
        scores: Tensor,
        losses: Tensor,
        valid: Tensor,
        corner: Tensor,
        num_examples: int,
        curvature: Callable[[], Tensor] | None = None,
    ) -> None:
        self.mass, self.scores, self.losses, self.valid = mass, scores, losses, valid
        self.hinges = scores + losses
        self.corner = corner
        self.num_examples = num_examples
        self._curvature = curvature

    def gaps(self) -> Tensor:
        """Block gaps g_i towards the corner, ``[B]`` float64 ([G16] eq. 6)."""
        best = self.hinges.gather(1, self.corner.unsqueeze(1)).squeeze(1)
        return (best - (self.mass * self.hinges).sum(1)) / self.num_examples

    def curvature(self) -> Tensor:
        """``[B, M, M]`` float64: ``<Phi_i^T p(y), Phi_i^T p(y')> / (lam n^2)``, p relative to the parts of the target.

        With r = hinges/n, changing the masses by c changes the dual by ``<c, r> - c^T G c / 2``.
        """
        assert self._curvature is not None, "the storage gives no inner products of labelings"
        return self._curvature()

    def towards(self, columns: Tensor) -> Tensor:
        """Indicators of one column for each block, ``[B, M]`` float64."""
        return torch.zeros_like(self.mass).scatter_(1, columns.unsqueeze(1), 1.0)

    def choose(self, direction: Direction) -> Tensor:
        """The change of the masses by a direction's rule number, on the CPU: ``[B, M]`` float64."""
        size, atoms = self.mass.shape
        gram = self.curvature() if direction.needs_curvature else self.mass.new_zeros(size, 0, 0)
        rates = torch.where(self.valid, self.hinges / self.num_examples, -torch.inf)
        read = read_together(*(t.detach() for t in (self.corner, self.mass, rates, gram)))
        arrays = [t.contiguous().numpy() for t in read]
        change = np.zeros((size, atoms))
        choose_each(direction.rule, *arrays, direction.steps, direction.tolerance, change, np.zeros(atoms))
        return upload(torch.from_numpy(change), self.mass.device)


class DirectionRule(Protocol):
    """Chooses the direction of every block of a batch."""

    needs_labelings: bool
    """Whether the rule moves mass between single labelings; it then needs ``storage=Labelings()``."""

    needs_curvature: bool
    """Whether the rule reads ``atoms.curvature()``."""

    def __call__(self, atoms: Atoms) -> Tensor:
        """The change of ``atoms.mass`` for a step of 1, ``[B, M]`` float64.

        Rows sum to zero, ``mass + change`` is non-negative, and only valid columns change.
        """
        ...


@dataclass(frozen=True)
class Direction:
    """A direction of the library; other directions are any :class:`DirectionRule`.

    A block takes at most ``steps`` inner steps, which end at ``tolerance``.
    """

    rule: ClassVar[int]
    """The number of the rule in ``torchssvm.steps.numba``."""

    needs_labelings = True
    needs_curvature = False

    steps: int = field(default=0, init=False, repr=False)
    tolerance: float = field(default=0.0, init=False, repr=False)

    def __call__(self, atoms: Atoms) -> Tensor:
        """The change of ``atoms.mass`` for a step of 1, ``[B, M]`` float64."""
        return atoms.choose(self)


@dataclass(frozen=True)
class FrankWolfe(Direction):
    """Towards the corner: ``alpha <- (1 - gamma) alpha + gamma e_s`` ([B13] Algorithm 4).

    Example:
        >>> solver = Solver(direction=FrankWolfe())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    rule = FRANK_WOLFE
    needs_labelings = False

    def __call__(self, atoms: Atoms) -> Tensor:
        """Move all mass to the corner, with the same bits as the compiled rule."""
        return atoms.towards(atoms.corner) - atoms.mass


@dataclass(frozen=True)
class Pairwise(Direction):
    """From the away corner to the corner: ``alpha_a -= gamma alpha_a``, ``alpha_s += gamma alpha_a`` ([G16] Alg. 3).

    The away corner is the atom with mass whose hinge is smallest; a step of 1 drops it.

    Example:
        >>> solver = Solver(direction=Pairwise(), storage=Labelings())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    rule = PAIRWISE


@dataclass(frozen=True)
class Away(Direction):
    """Away from the worst active labeling or towards the corner, whichever has the larger slope ([G16] Algorithm 4).

    Away: ``alpha <- alpha + gamma c (alpha - e_a)`` with ``c = alpha_a / (1 - alpha_a)``; a step of 1 drops the away
    corner. A block with all its mass on the away corner takes the Frank-Wolfe direction. The slopes are compared before
    the directions are scaled to a largest step of 1.

    Example:
        >>> solver = Solver(direction=Away(), storage=Labelings())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    rule = AWAY


@dataclass(frozen=True)
class Hybrid(Direction):
    """Frank-Wolfe, pairwise or away: for every block the direction whose exact step raises the dual most.

    With slope v and curvature q along a direction, the exact step gamma in [0, 1] gains ``v gamma - q gamma^2 / 2``.
    v and q follow from the block's inner products, so the gains are known before the step.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> dual = DualState.for_head(head, num_examples=30, lam=0.1, storage=Labelings())
        >>> CompiledBCFW(head, dual, in_order(data), direction=Hybrid()).solve(tolerance=0.01).gap <= 0.01
        True
    """

    rule = HYBRID
    needs_curvature = True


@dataclass(frozen=True)
class Corrective(Direction):
    """Towards the best distribution over the block's cached labelings and the corner (fully corrective).

    The dual restricted to one block is a small concave quadratic on a simplex. It is maximised by exact pairwise steps,
    each from the active labeling with the smallest hinge to the labeling with the largest, until the difference of
    these hinges is below ``tolerance`` times its first value, or after ``steps`` steps. A step costs O(M) for M
    labelings: no decoding and no weights. For a block alone, the exact step along the result is 1 once solved.

    The mean parts of classes are the masses of all labelings. With ``storage=MeanParts()`` the compiled loop finds the
    best of them as a projection on the simplex, without inner steps (Keerthi et al. 2008, "A sequential dual method for
    large scale multi-class linear SVMs"). Blocks are then visited in sweeps; ``steps`` and ``tolerance`` are not used.

    Args:
        steps: Largest number of pairwise steps for each block.
        tolerance: Fraction of the first difference of hinges at which a block counts as solved.

    Raises:
        ValueError: ``steps`` is less than 1, or ``tolerance`` is not in [0, 1).

    Example:
        >>> solver = Solver(direction=Corrective(steps=10))
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    rule = CORRECTIVE
    needs_curvature = True

    steps: int = 30
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_whole(self.steps, "steps"))
        object.__setattr__(self, "tolerance", as_number(self.tolerance, "tolerance"))
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"tolerance={self.tolerance} must be at least 0 and less than 1")

    def __repr__(self) -> str:
        return f"Corrective(steps={self.steps}, tolerance={self.tolerance:g})"


DIRECTIONS = (FrankWolfe, Pairwise, Away, Hybrid, Corrective)
"""The directions of the compiled loop; subclasses may behave otherwise."""


def solves_whole(direction: Any, storage: Storage) -> bool:
    """Whether steps solve whole blocks of mean parts: the compiled loop has them for classes."""
    return type(direction) is Corrective and type(storage) is MeanParts


def check_rules(direction: DirectionRule, oracle: OracleRule, storage: Storage, *, whole: bool = False) -> None:
    """Check that the rules work with the storage, of which blocks of mean parts may be solved ``whole``."""
    for name, rule, method, such in (
        ("direction", direction, "__call__", "Pairwise()"),
        ("oracle", oracle, "misses", "CacheOracle()"),
    ):
        check_object(rule, name, method, such)
        if rule.needs_labelings and not storage.keeps_labelings and not (whole and solves_whole(rule, storage)):
            raise ValueError(
                f"{name}={rule} needs single labelings: storage={type(storage).__name__}() must be storage=Labelings()"
            )


class Order(Protocol):
    """Draws batches from the last known block gaps."""

    needs_gaps: bool
    """Whether draws depend on the gaps; otherwise a whole epoch is drawn at once."""

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """``batches`` tensors of ``batch_size`` distinct examples each.

        Args:
            gaps: ``[n]`` float64, finite and non-negative.
            batch_size: Examples in a batch, at most n.
            generator: The only source of randomness, so that a run resumes with the same draws.
        """
        ...


@dataclass(frozen=True)
class Proportional:
    """Probability proportional to ``gap ** power`` ([G16] Algorithm 2 for power 1), distinct within a batch.

    Blocks with gap 0 are drawn, uniformly, only if the others are too few to fill a batch.

    Example:
        >>> dual = DualState.for_head(LinearMulticlass(4, 3), num_examples=30, lam=0.1)
        >>> sampler = GapBatchSampler(dual, batch_size=10, order=Proportional(power=0.5))
        >>> [len(rows) for rows in sampler]
        [10, 10, 10]
    """

    power: float = 1.0
    needs_gaps = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "power", check_number(self.power, "power", 0.0))

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Successive weighted draws, leaving out examples that the batch already has."""
        largest = float(gaps.max())
        weights = (gaps / largest) ** self.power if largest > 0.0 else torch.ones_like(gaps)
        ends = weights.cumsum(0)
        points = torch.rand(batches, 2 * batch_size + 16, dtype=torch.float64, generator=generator) * ends[-1]
        drawn = torch.searchsorted(ends, points, right=True).clamp_(max=len(ends) - 1)
        if not bool((weights[drawn] > 0.0).all()):  # rounding at the end of the last interval
            drawn = torch.where(weights[drawn] > 0.0, drawn, weights.argmax())
        return [self._batch(list(dict.fromkeys(row)), weights, batch_size, generator) for row in drawn.tolist()]

    def _batch(self, distinct: list[int], weights: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
        """The first ``batch_size`` distinct numbers, filled up with further draws if they are fewer."""
        if len(distinct) >= batch_size:
            return torch.tensor(distinct[:batch_size])
        # If few weights dominate, the others follow in the order of exponential variables with their weights as rates
        # (compared in logarithms); a weight of 0 comes after all others.
        noise = torch.empty_like(weights).exponential_(generator=generator)
        keys = torch.where(weights > 0.0, noise.log() - weights.log(), 1e6 + noise)
        keys[distinct] = torch.inf
        return torch.cat([torch.tensor(distinct), keys.topk(batch_size - len(distinct), largest=False).indices])


@dataclass(frozen=True)
class LargestGap:
    """The blocks with the largest gaps first.

    Example:
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=Solver(order=LargestGap())).relative_gap <= 0.01
        True
    """

    needs_gaps = True

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """The largest gaps in descending order, ties in random order; after all n blocks the order repeats."""
        n = len(gaps)
        shuffled = torch.randperm(n, generator=generator)
        order = shuffled[gaps[shuffled].argsort(descending=True, stable=True)]
        return _chunks(order.repeat(math.ceil(batches * batch_size / n)), batches, batch_size)


@dataclass(frozen=True)
class Uniform:
    """Every batch is a uniform draw of distinct examples, independent of the others ([B13] Algorithm 4).

    Example:
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=Solver(order=Uniform())).relative_gap <= 0.01
        True
    """

    needs_gaps = False

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Uniform draws."""
        return [torch.randperm(len(gaps), generator=generator)[:batch_size] for _ in range(batches)]


@dataclass(frozen=True)
class Permutation:
    """Every example once in an epoch, in random order.

    Example:
        >>> dual = DualState.for_head(LinearMulticlass(4, 3), num_examples=30, lam=0.1)
        >>> sampler = GapBatchSampler(dual, batch_size=10, order=Permutation())
        >>> sorted(row for rows in sampler for row in rows) == list(range(30))
        True
    """

    needs_gaps = False

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """One permutation, in batches; the last one may be smaller."""
        return list(torch.randperm(len(gaps), generator=generator).split(batch_size))[:batches]


def _chunks(order: Tensor, batches: int, batch_size: int) -> list[Tensor]:
    """Consecutive batches of ``order``, each of distinct examples."""
    result = []
    for start in range(0, batches * batch_size, batch_size):
        batch = order[start : start + batch_size]
        if len(batch.unique()) < len(batch):  # the end of one round and the start of the next
            batch = order[:batch_size]
        result.append(batch)
    return result
