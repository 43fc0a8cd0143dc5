"""Block rules, penalties and factorwise oracles of :class:`torchssvm.GDMM`."""

from __future__ import annotations

from dataclasses import dataclass

from torchssvm.core.arguments import as_number, check_number


class BlockRule:
    """How a visit of an example moves its blocks; use one of the three subclasses."""

    away = False
    """Whether blocks move along single directions."""
    greedy = False
    """Whether a visit moves the steepest block repeatedly, instead of every block once."""


@dataclass(frozen=True)
class FullyCorrective(BlockRule):
    """Every block moves to the minimum of a quadratic model over its active set, by one projection on the simplex.

    Block-coordinate Frank-Wolfe of [Y16] Algorithm 4: the factorwise oracle adds a configuration to the active set,
    then equation (25) is solved.

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1, rule=FullyCorrective())
        >>> trainer.solve(tolerance=0.05).relaxed_gap <= 0.05
        True
    """


@dataclass(frozen=True)
class AwayStep(BlockRule):
    """Every block takes a Frank-Wolfe step or an away step, whichever is steeper, with exact line search.

    Away-step Frank-Wolfe of [Y16] Algorithm 2, block after block.

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1, rule=AwayStep())
        >>> trainer.solve(tolerance=0.05).relaxed_gap <= 0.05
        True
    """

    away = True


@dataclass(frozen=True)
class BlockGreedy(BlockRule):
    """A visit moves the block with the largest model decrease, as many times as the example has blocks.

    Block-greedy coordinate descent of [Y16] Algorithm 3, with the blocks minimised as in :class:`FullyCorrective`. The
    decrease of every block is recomputed for each move: moves are better, but each costs as much as a whole visit.

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1, rule=BlockGreedy())
        >>> trainer.solve(tolerance=0.05).relaxed_gap <= 0.05
        True
    """

    greedy = True


@dataclass
class Residuals:
    """The disagreement of factors and variables after a pass, the variables' move in the pass, and their scales.

    Sums are over all pairs of a factor and its variable.
    """

    apart: float  # ``sqrt(sum |M pi_f - pi_j|^2)``
    moved: float  # ``sqrt(sum |change of pi_j|^2)``
    size: float  # ``sqrt(sum |pi_j|^2)``
    force: float  # ``sqrt(sum |multiplier|^2)``, times n
    passes: int  # passes made so far
    first: float  # rho of the first pass


class Penalty:
    """The penalty rho and the step eta of the augmented Lagrangian, both times n: in units of losses and scores.

    Args:
        rho: Penalty on inconsistency; positive. None is twice the mean cost of a wrong label on chains, and a third of
            that cost on label sets, where a label has many factors; the best values in experiments, within a factor of
            three.
        step: eta / rho, the step of the multipliers in units of the penalty; in (0, 2).

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1, penalty=Penalty(rho=0.5))
        >>> trainer.solve(tolerance=0.05).relaxed_gap <= 0.05
        True
    """

    def __init__(self, rho: float | None = None, *, step: float = 1.0) -> None:
        self.rho = None if rho is None else check_number(rho, "rho", above=0.0)
        self.step = as_number(step, "step")
        if not 0.0 < step < 2.0:
            raise ValueError(f"step={step} must be in (0, 2): the ascent of the multipliers diverges beyond")

    def first(self, usual: float) -> float:
        """The penalty of the first pass."""
        if self.rho is not None:
            return self.rho
        return usual if usual > 0.0 else 1.0

    def next(self, rho: float, residuals: Residuals) -> float:
        """The penalty of the next pass; here unchanged."""
        return rho


_BALANCED = 100  # passes
_MOST = 1000.0  # the largest total change of rho, as a factor up or down


class ResidualBalancing(Penalty):
    """Raise rho while factors disagree and variables rest, lower it in the opposite case ([Boyd et al. 2011] 3.4.1).

    The residuals are relative ([Wohlberg 2017], arXiv:1704.06209): the primal one is ``apart / size``, the dual one
    ``rho * moved / force``, so that neither the losses' unit nor the number of factors of a variable matters.

    Args:
        rho: Penalty of the first pass; None as in :class:`Penalty`.
        step: eta / rho.
        factor: rho is multiplied by this where the ratio of the residuals is above 2, and divided where it is below
            1/2; more than 1. After 100 passes it is fixed, so that the method of multipliers can converge.

    Raises:
        TypeError, ValueError: As :class:`Penalty`.

    Example:
        >>> balanced = ResidualBalancing(factor=1.5)
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1, penalty=balanced)
        >>> trainer.solve(tolerance=0.05).relaxed_gap <= 0.05
        True
    """

    def __init__(self, rho: float | None = None, *, step: float = 1.0, factor: float = 1.3) -> None:
        super().__init__(rho, step=step)
        self.factor = check_number(factor, "factor", above=1.0)

    def next(self, rho: float, residuals: Residuals) -> float:
        """The raised, lowered or unchanged penalty."""
        if residuals.passes > _BALANCED:
            return rho
        primal, dual = residuals.apart * residuals.force, rho * residuals.moved * residuals.size
        if primal > 2.0 * dual:
            return min(rho * self.factor, residuals.first * _MOST)
        if primal < 0.5 * dual:
            return max(rho / self.factor, residuals.first / _MOST)
        return rho


@dataclass(frozen=True)
class SortedOracle:
    """Factorwise oracle by walks over sorted weights, which look at few of the ``|Y_f|`` entries ([Y16] app. C).

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1, oracle=SortedOracle())
        >>> trainer.step().visited > 0
        True
    """


@dataclass(frozen=True)
class BruteForce:
    """Factorwise oracle by looking at every configuration; faster for small domains.

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1, oracle=BruteForce())
        >>> trainer.step().visited > 0
        True
    """
