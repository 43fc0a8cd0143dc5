"""Weights of examples: 2 is the example twice, and 0 is without it, for every estimator."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from torchssvm import Batch, CompiledBCFW, LinearChain, check
from torchssvm.estimators import ChainSVC, GraphSVC, MultilabelSVC, MultinomialSVC, PredictThenOptimize, SegmentSVC
from torchssvm.structures.decisions import ShortestPath
from torchssvm.structures.weighted import Weighted, WeightedHead

chance = np.random.default_rng(5)
SIZES = chance.integers(2, 5, 8)
ROWS = [chance.normal(size=(size, 2)) for size in SIZES]
LABELS = [chance.integers(0, 2, size).tolist() for size in SIZES]
LABELS = [["ab"[k] for k in states] for states in LABELS]
NAMED = [[{"big": bool(row[0] > 0), "size": float(row[1])} for row in rows] for rows in ROWS]
CHAINS = [np.array([(i - 1, i) for i in range(1, size)]) for size in SIZES]
TRIANGLE = np.array([(0, 1), (1, 2), (0, 2)])
CYCLES = [(chance.normal(size=(3, 2)), TRIANGLE) for _ in SIZES]
MATRIX = chance.normal(size=(8, 3))
CASES = {
    "classes": (MultinomialSVC(), MATRIX, chance.integers(0, 3, 8)),
    "rare classes": (MultinomialSVC(lam=0.05, class_weight="balanced"), csr_matrix(MATRIX), np.arange(8) * 5 % 7 % 3),
    "sets": (MultilabelSVC(), MATRIX, chance.integers(0, 2, (8, 3))),
    "rare sets": (MultilabelSVC(class_weight="balanced"), MATRIX, chance.integers(0, 2, (8, 3))),
    "one of a set": (MultilabelSVC(class_weight={0: 2.0, 1: 1.0, 2: 1.0}), MATRIX, np.arange(8) % 3),
    "arrays": (ChainSVC(), ROWS, LABELS),
    "names": (ChainSVC(class_weight="balanced"), NAMED, LABELS),
    "segments": (SegmentSVC(max_duration=4), ROWS, LABELS),
    "spans": (SegmentSVC(max_duration=4, span_loss=True, boundary=True), ROWS, LABELS),
    "forests": (GraphSVC(class_weight="balanced"), list(zip(ROWS, CHAINS, strict=True)), LABELS),
    "cycles": (GraphSVC(class_weight={"a": 2.0, "b": 1.0}), CYCLES, [list("aab"), list("bba")] * 4),
    "decisions": (PredictThenOptimize(ShortestPath.grid(2, 2), 0.1), MATRIX, chance.uniform(1, 3, (8, 4))),
    "anchored": (
        PredictThenOptimize(ShortestPath.grid(2, 2), 0.1, anchor="least-squares"), MATRIX, chance.uniform(1, 3, (8, 4)),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [MultinomialSVC(max_passes=100), MultilabelSVC(max_passes=2)])
def test_the_checks_of_scikit_learn(estimator):
    # Both fits end within tol of the same optimum, and the checks ask for the same scores to seven digits.
    names = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
    reasons = dict.fromkeys(names, "the two fits agree within tol, see below")
    result = check_estimator(estimator, on_skip=None, expected_failed_checks=reasons)
    assert {one["status"] for one in result} <= {"passed", "skipped", "xfail"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_a_weight_of_2_is_the_example_twice_and_0_is_none(case):
    """The objective is the same: each run's dual is below the other's primal, and strong convexity bounds weights."""
    if case == "cycles":
        pytest.importorskip("maxflow")
    estimator, X, y = CASES[case]
    times = [2, 1, 0, 1, 3, 1, 1, 1]
    places = np.repeat(np.arange(8), times)
    several = [values[places] if hasattr(values, "shape") else [values[i] for i in places] for values in (X, y)]
    estimator.set_params(tol=0.02, random_state=0)
    runs = []
    for given in ((X, y, times), tuple(several)):
        runs.append(estimator.fit(*given).certificate_)
        weights = torch.nn.utils.parameters_to_vector(estimator.head_.parameters()).double()
        runs.append(weights)
    one, first, two, second = runs
    assert one.lam == pytest.approx(two.lam)
    assert one.dual <= two.primal + 1e-9
    assert two.dual <= one.primal + 1e-9
    if case not in ("sets", "rare sets", "one of a set"):  # there the head that is kept is made anew
        distance = sum((2.0 * max(run.gap, 0.0) / run.lam) ** 0.5 for run in (one, two))
        assert float((first - second).norm()) <= distance + 1e-4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["sets", "arrays", "names", "segments", "forests"])
def test_weights_train_in_the_compiled_loop_which_goes_on_with_others(case):
    estimator, X, y = CASES[case]
    going_on, anew, without = (clone(estimator).set_params(tol=0.02, random_state=0) for _ in range(3))
    going_on.set_params(warm_start=True).fit(X, y, [2, 1, 0, 1, 3, 1, 1, 1])
    assert isinstance(going_on._run[0], CompiledBCFW)
    one, two = (fitted.fit(X, y, [1, 2, 0, 1, 3, 1, 1, 1]).certificate_ for fitted in (going_on, anew))  # two swapped
    assert max(one.dual, two.dual) <= min(one.primal, two.primal) + 1e-9
    assert isinstance(going_on._run[0], CompiledBCFW)
    assert going_on.n_passes_ < anew.n_passes_
    ones, none = (fitted.fit(X, y, *times) for fitted, times in ((anew, [np.ones(8)]), (without, [])))
    for alike, weights in zip(ones.head_.parameters(), none.head_.parameters(), strict=True):
        assert torch.equal(alike, weights)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["sets", "arrays", "names", "segments", "forests", "decisions"])
def test_scores_count_examples_as_often_as_they_weigh(case):
    estimator, X, y = CASES[case]
    times = [2, 1, 0, 1, 3, 1, 1, 1]
    places = np.repeat(np.arange(8), times)
    several = [values[places] if hasattr(values, "shape") else [values[i] for i in places] for values in (X, y)]
    turned = y[::-1].copy() if hasattr(y, "shape") else y
    fitted = clone(estimator).set_params(tol=0.1, random_state=0).fit(X, turned)
    assert fitted.score(X, y, times) == pytest.approx(fitted.score(*several))


def test_weights_are_checked():
    for estimator, X, y in CASES.values():
        with pytest.raises(ValueError, match="sample_weight='balanced'"):
            estimator.fit(X, y, "balanced")
        for wrong in ([1.0] * 7, [-1.0] + [1.0] * 7, [0.0] * 8, [np.nan] * 8):
            with pytest.raises(ValueError, match="sample_weight"):
                estimator.fit(X, y, wrong)
    with pytest.raises(ValueError, match="lam=None"):
        PredictThenOptimize(ShortestPath.grid(2, 2)).fit(MATRIX, np.ones((8, 4)), np.arange(8))
    with pytest.raises(ValueError, match="C='choose'"):
        MultilabelSVC("choose").fit(MATRIX, np.eye(8, 3, dtype=int), np.arange(8))


def test_the_weighted_structure_keeps_the_contract():
    x, y = torch.randn(3, 4, 2, dtype=torch.float64), torch.randint(0, 3, (3, 4))
    weight = torch.tensor([0.25, 1.0, 7.0], dtype=torch.float64)
    head = WeightedHead(LinearChain(2, 3).double())
    batch = Batch(Weighted(x, weight), Weighted(y, weight), torch.arange(3), torch.tensor([4, 2, 1]))
    report = check(head, head.structure, batch)
    assert report.ok, str(report)


def test_generators_are_read_once():
    def tokens(rows):
        yield from rows

    model = ChainSVC(tol=0.1, random_state=0).fit((tokens(one) for one in NAMED), (tokens(one) for one in LABELS))
    assert model.predict(tokens(one) for one in NAMED) == model.predict(NAMED)
    assert model.score((one for one in NAMED), (one for one in LABELS)) == model.score(NAMED, LABELS)
