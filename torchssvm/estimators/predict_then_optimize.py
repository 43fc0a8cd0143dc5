"""Predict, then optimise: predicted costs trained by the regret of the decisions that follow from them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import (
    check_choice,
    check_flags,
    check_number,
    check_readable,
    check_share,
    check_tensor,
    or_default,
)
from torchssvm.core.batch import tree_map
from torchssvm.core.modules import largest_feature
from torchssvm.estimators.base import CertifiedEstimator
from torchssvm.estimators.examples import (
    check_counts,
    check_finite,
    check_matrix,
    check_shape,
    columns_of,
    counted,
    times_of,
)
from torchssvm.path.choose_lam import LamChoice, choose_lam
from torchssvm.solvers.guess_lam import guess_lam
from torchssvm.solvers.solver import Relative, Solver, WhenEstimated
from torchssvm.steps.directions import CacheOracle, Corrective, FrankWolfe
from torchssvm.structures.decisions.data import DecisionProblems, Situations
from torchssvm.structures.decisions.head import LinearDecisions
from torchssvm.structures.decisions.structure import Decisions

Array = NDArray[Any]

_ANCHORS = ("zero", "least-squares")
_COARSE = 0.1  # the gap, as a share of the primal, to which each lambda is trained
_FACTORS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # lambdas that are tried, as multiples of the guess
_AT_ANCHOR = 100.0  # with an anchor, the first one: the weights hardly leave the anchor
_SAMPLE = 16  # examples of which lambda is guessed
_BUDGET = 3.0  # lambdas below the best one may take so many times the passes that it and those before it took
_CHECKED = 3.0  # passes between exact passes: few are needed at large lambdas


@dataclass(eq=False, repr=False)
class PredictThenOptimize(CertifiedEstimator):
    """Predicts costs linearly, decides by a program, and minimises the regret by SPO+ to a certified gap.

    Minimises ``lam/2 |W - W0|^2 + (1/n) sum_i SPO+(c_hat(x_i), c_i)``, ``c_hat(x) = W x + b``, the intercepts being
    weights of a feature of the size ``intercept_scaling``. The structure is :class:`torchssvm.Decisions`.

    ``X`` is ``[n, F]``, or ``[n, D, F]`` with ``shared=True``, arrays or tensors; with ``features``, what that module
    takes. :class:`torchssvm.structures.Situations` add known costs and what the program takes for every example.

    Args:
        program: A :class:`torchssvm.structures.decisions.DecisionOracle`, such as ``ShortestPath.grid(5, 5)`` or an
            ``IntegerProgram``, or :class:`torchssvm.Decisions`.
        lam: Regularisation; None chooses it by the regret on ``held_out`` of the examples, to a gap of 10 %, from large
            to small, until smaller ones would take more than three times the passes of the best one and
            those before it; and then trains on all. With an anchor, the first lambda hardly leaves it.
        anchor: What weights are regularised towards, W0: "zero", or "least-squares", the predictor of least squares.
        features: A module that makes features of ``X``, frozen and in evaluation mode; None: ``X`` are features.
        intercept_scaling: The size of the feature that intercepts are weights of; the larger, the less intercepts are
            regularised. 0 is without intercepts.
        solver: Rules of training, as in :func:`torchssvm.solve`. None takes a cache and corrective steps, and the
            library's choice for a program that says that it is quick (``DecisionOracle.quick``).
        held_out: The share of the examples on which lambda is chosen.
        tol, max_passes, verbose: As in :class:`MultinomialSVC`.
        random_state: Seed of the order of the examples, and of the held-out ones.

    Attributes:
        coef_: ``[D, F]``, or ``[F]`` where costs share them: of predicted costs, W0 included.
        intercept_: ``[D]``, or a number where costs share it.
        lam_: Lambda.
        choice_: The :class:`torchssvm.path.LamChoice`, None where ``lam`` is given.
        certificate_, n_passes_, history_: As in :class:`MultinomialSVC`.
        seconds_per_decision_: Wall-clock seconds that the program took for one decision.
        n_features_in_, feature_names_in_: As in :class:`MultinomialSVC`.
        head_, structure_: The trained torch module, which predicts what is added to W0, and the decisions.

    Example:
        >>> chance = np.random.default_rng(0)
        >>> X = chance.normal(size=(40, 3))
        >>> costs = 1.0 + (X @ chance.normal(size=(3, 4))) ** 2
        >>> model = PredictThenOptimize(torchssvm.structures.decisions.ShortestPath.grid(2, 2), lam=0.1).fit(X, costs)
        >>> model.decide(X).shape, model.certificate_.relative_gap <= 0.01
        ((40, 4), True)
    """

    program: Any
    lam: float | None = None
    _: KW_ONLY
    anchor: str = "zero"
    features: nn.Module | None = None
    shared: bool = False
    intercept_scaling: float = 1.0
    solver: Solver | None = None
    held_out: float = 0.25
    tol: float = 0.01
    max_passes: float = 1000.0
    random_state: Any = None
    verbose: bool = False

    def fit(self, X: Any, costs: Any, sample_weight: Any = None) -> PredictThenOptimize:
        """Train on features ``X`` and the true costs ``[n, D]``.

        Args:
            sample_weight: ``[n]``, how often each example counts, as in :class:`MultinomialSVC`; needs ``lam``.

        Raises:
            ValueError: A parameter is out of range; X and costs do not fit, or are not finite; or the program did not
                prove its decisions optimal.
            TypeError: ``program``, ``features`` or a flag is of another kind.
        """
        structure = self._checked()
        x = self._inputs(X, reset=True)
        self._cost_columns, costs = columns_of([costs], None, "costs"), _as_costs(costs)
        if self.lam is None and (sample_weight is not None or len(costs) < 2):
            raise ValueError("lam=None holds out examples, and needs two or more of weight 1: give lam")
        kept, _, times, _ = counted(torch.arange(len(x.x)), costs, sample_weight)
        if len(kept) < len(x.x) == len(costs):
            x, costs = tree_map(lambda tensor: tensor[kept], (x, costs))
        structure.target(costs[:1], None if x.given is None else x.given[:1])  # compiles, and checks shapes
        start = clock()
        problems = DecisionProblems(x, costs, structure)
        seconds = (clock() - start) / len(problems)
        solver = self.solver
        if solver is not None and (solver.seed or solver.schedule is not None):
            raise ValueError("solver has a seed or a schedule: give random_state, and no schedule")
        if solver is None and not structure._quick_to_decode:
            solver = Solver(direction=Corrective(), oracle=CacheOracle())
        lam, choice = self.lam, None
        if lam is None:
            choice = self._choose(problems, solver)
            lam = choice.best.lam
        (anchored,), base = _anchored([problems], self.anchor, self.intercept_scaling, times)
        with warnings.catch_warnings():
            if self.anchor != "zero":  # which may be right about every example
                warnings.filterwarnings("ignore", message="the primal is 0 at zero weights")
            head = self._train(self._new_head(x, structure), anchored, float(lam), solver, times)
        self.lam_, self.choice_, self.seconds_per_decision_ = float(lam), choice, seconds
        weight = head.weight.detach().numpy().astype(np.float64)
        coef, intercept = weight, np.zeros(len(weight))
        if self.intercept_scaling:
            coef, intercept = weight[:, :-1], weight[:, -1] * self.intercept_scaling
        coef, intercept = coef + base[0], intercept + base[1]
        self.coef_: Array = coef[0] if self.shared else coef
        self.intercept_: Any = float(intercept[0]) if self.shared else intercept
        self.n_features_in_, self._known = coef.shape[1], x.fixed is not None
        return self

    def predict(self, X: Any) -> Array:
        """The predicted costs, ``[n, D]`` float64, known ones included."""
        check_is_fitted(self)
        return self._costs(self._inputs(X))

    def decide(self, X: Any) -> Array:
        """The decisions that are best under the predicted costs, ``[n, D]``."""
        check_is_fitted(self)
        x = self._inputs(X)
        return self._solve(self._costs(x), x)

    def regret(self, X: Any, costs: Any, sample_weight: Any = None) -> float:
        """What the decisions cost more than the best ones, as a share of what these cost.

        The sum of all regrets divided by the sum of the absolute costs of the best decisions, as PyEPO reports it.

        Args:
            costs: ``[n, D]``, the true costs.
            sample_weight: As in :meth:`fit`.

        Raises:
            ValueError: X and costs have different lengths, or do not fit the program.
        """
        check_is_fitted(self)
        columns_of([costs], self._cost_columns, "costs")
        x, costs = self._inputs(X), _as_costs(costs)
        check_counts(x.x, costs, "costs")
        target = self.structure_.target(costs, x.given)
        decisions = torch.as_tensor(self._solve(self._costs(x), x))
        times = torch.from_numpy(times_of(sample_weight, len(costs)))
        best = times @ (target.y.to(torch.float64) * costs).sum(1).abs()
        return float(times @ self.structure_.regret(decisions, target) / best.clamp_min(1e-300))

    def score(self, X: Any, costs: Any, sample_weight: Any = None) -> float:
        """Minus :meth:`regret`, so that more is better: for ``cross_val_score`` and ``GridSearchCV``."""
        return -self.regret(X, costs, sample_weight)

    def _checked(self) -> Decisions:
        self._check_run()
        check_flags(shared=self.shared)
        check_number(self.intercept_scaling, "intercept_scaling", least=0.0)
        if self.lam is not None:
            check_number(self.lam, "lam", above=0.0)
        check_choice(self.anchor, "anchor", *_ANCHORS)
        check_share(self.held_out, "held_out")
        return Decisions(self.program.oracle if isinstance(self.program, Decisions) else self.program)

    def _inputs(self, X: Any, reset: bool = False) -> Situations:
        features, fixed, given = X if isinstance(X, Situations) else (X, None, None)
        self._check_names([features], reset)
        if not isinstance(features, Tensor):
            check_matrix(features, "X")
            features = torch.from_numpy(np.require(features, requirements=["C", "W"]))
        if self.features is not None:
            trained = self.features.training
            self.features.eval()
            try:
                with torch.no_grad():
                    features = self.features(features)
            finally:
                self.features.train(trained)
        features = check_tensor(features, "X").detach().cpu()
        if not features.is_floating_point():
            features = features.to(torch.float64)
        check_shape(features, "X", *(("n", "D", "F") if self.shared else ("n", "F")))
        if not bool((features.abs() <= (most := largest_feature(features.dtype))).all()):
            raise ValueError(f"X has features that are not finite or larger than {most:.2g}: replace or scale them")
        for each in (fixed, given):
            check_readable(each, "X")
        known = [None if each is None else torch.as_tensor(each).detach().cpu() for each in (fixed, given)]
        if known[0] is not None:
            check_shape(known[0], "X.fixed", "n", "D")
            check_finite(known[0].numpy(), "X.fixed")
        for name, each in zip(("X.fixed", "X.given"), known, strict=True):
            if each is not None:
                check_counts(features, each, name)
        return Situations(features, *known)

    def _new_head(self, x: Any, structure: Decisions) -> LinearDecisions:
        size = x.x.shape[-1] + bool(self.intercept_scaling)
        return LinearDecisions(size, structure=structure, shared=self.shared, bias=False).to(x.x.dtype)

    def _choose(self, problems: DecisionProblems, solver: Solver | None) -> LamChoice:
        """Follow lambda from large to small, to a loose gap, until smaller ones cost more than they may.

        With an anchor, the first lambda is so large that the weights stay there.
        """
        n, structure = len(problems), problems.structure
        size = min(max(round(self.held_out * n), 1), n - 1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        order = torch.from_numpy(np.random.RandomState(seed).permutation(n))
        parts = [_part(problems, rows) for rows in (order[size:], order[:size])]
        (train, held_out), _ = _anchored(parts, self.anchor, self.intercept_scaling)
        head: Any = self._new_head(problems.x, structure)

        @torch.no_grad()
        def score(trained: nn.Module) -> float:
            decisions = structure.decode(trained(held_out.x))
            return -float(structure.regret(decisions, held_out.target).mean())

        if solver is None and structure._quick_to_decode:
            solver = Solver(direction=FrankWolfe())  # the quickest to a loose gap
        some = _part(train, torch.arange(min(_SAMPLE, len(train))))
        factors = _FACTORS if self.anchor == "zero" else (_AT_ANCHOR, *_FACTORS)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the primal is 0 at zero weights")  # an anchor may be right
            guess = _guess(head, some) * len(some) / len(train)
            return choose_lam(
                head,
                train,
                held_out,
                [factor * guess for factor in factors],
                tolerance=Relative(max(float(self.tol), _COARSE)),  # the run that follows needs no smaller gap
                score=score,
                patience=2,
                budget=_BUDGET,
                max_passes=float(self.max_passes),
                solver=replace(or_default(solver, Solver, "solver"), seed=seed, schedule=WhenEstimated(_CHECKED)),
                progress=bool(self.verbose),
            )

    def _costs(self, x: Situations) -> Array:
        check_shape(x.x, "X", *x.x.shape[:-1], self.n_features_in_)
        costs = _linear(x.x, np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_))
        if x.fixed is None:
            return costs
        check_shape(x.fixed, "X.fixed", *costs.shape)
        return costs + x.fixed.numpy()

    def _solve(self, costs: Array, x: Situations) -> Array:
        if self._known and x.fixed is None:
            raise ValueError("X has no known costs, and fit had: give Situations(X, fixed=...)")
        given = None if x.given is None else x.given.numpy()
        return np.asarray(self.structure_.oracle.solve(np.ascontiguousarray(costs), given)[0])


def _as_costs(costs: Any) -> Tensor:
    check_matrix(costs, "costs", labels=True)
    return torch.from_numpy(np.require(costs, np.float64, ["C", "W"]))


def _anchored(
    problems: Sequence[DecisionProblems], kind: str, intercept_scaling: float, weight: Array | None = None
) -> tuple[list[DecisionProblems], tuple[Array, Array]]:
    """Problems with the anchor's costs among the known ones, and with the feature of the intercepts.

    The anchor is fitted on the first of them, whose examples count ``weight`` ``[n]`` times. Also returns its weights
    ``[D, F]`` and intercepts ``[D]``; ``[1, F]`` and ``[1]`` for shared ones.
    """
    base = (np.zeros(1), np.zeros(1))
    if kind == "least-squares":
        base = _least_squares(problems[0], bool(intercept_scaling), weight)
    with_anchor = []
    for one in problems:
        anchored, (features, fixed, given) = copy.copy(one), one.x
        if kind != "zero":
            costs = torch.from_numpy(_linear(features, *base))
            fixed = costs if fixed is None else costs + fixed
        if intercept_scaling:
            ones = torch.full((*features.shape[:-1], 1), float(intercept_scaling), dtype=features.dtype)
            features = torch.cat([features, ones], -1)
        anchored.x = Situations(features, fixed, given)
        with_anchor.append(anchored)
    return with_anchor, base


def _least_squares(problems: DecisionProblems, intercept: bool, weight: Array | None) -> tuple[Array, Array]:
    features, fixed, _ = problems.x
    x, costs = features.to(torch.float64).numpy(), problems.target.cost.numpy()
    if fixed is not None:
        costs = costs - fixed.numpy()
    if x.ndim == 3:
        x, costs = x.reshape(-1, x.shape[-1]), costs.reshape(-1, 1)
    ones = np.full((len(x), 1), float(intercept))
    roots = np.ones(1) if weight is None else np.sqrt(np.repeat(weight, len(x) // len(weight)))
    weights = np.linalg.lstsq(np.hstack([x, ones]) * roots[:, None], costs * roots[:, None], rcond=None)[0].T
    return weights[:, :-1], weights[:, -1]


def _linear(features: Tensor, coef: Array, intercept: Array) -> Array:
    """``W x + b``, ``[n, D]`` float64."""
    x = features.to(torch.float64).numpy()
    return np.asarray(x @ coef[0] + intercept[0] if x.ndim == 3 else x @ coef.T + intercept)


def _part(problems: DecisionProblems, rows: Tensor) -> DecisionProblems:
    """Some of the problems, with their solutions."""
    some = copy.copy(problems)
    some.x, some.target = tree_map(lambda tensor: tensor[rows], (problems.x, problems.target))
    return some


def _guess(head: LinearDecisions, problems: DecisionProblems) -> float:
    """A lambda for these problems; without the anchor if it fits all of them."""
    features, fixed, given = problems.x
    try:
        return guess_lam(head, problems)
    except ValueError:
        if fixed is None:
            raise
    bare = copy.copy(problems)
    bare.x = Situations(features, None, given)
    return guess_lam(head, bare)
