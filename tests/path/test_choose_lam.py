"""One call that trains from the largest lambda to the smallest, scores held-out examples and keeps the best."""

import copy
import math

import numpy as np
import pytest
import torch
from cases.problem_data import Items
from cases.problems import PROBLEMS, Problem, reference

from torchssvm import Chain, LinearRanking, Ranking, Relative, Solver, choose_lam, evaluate, guess_lam, in_order, solve
from torchssvm.core.batch import Part
from torchssvm.datasets import PaddedDataset
from torchssvm.path import HeldOutPoint, LamChoice
from torchssvm.path.choose_lam import chosen_of
from torchssvm.solvers import primal
from torchssvm.solvers.evaluation import merge_evaluations
from torchssvm.structures.ranking import PairSwaps

LAMS = [1.0, 0.1, 0.3]
KINDS = ["chain", "multiclass"]


def problems(kind: str = "chain") -> tuple[Problem, Items]:
    """A problem, and other examples of the same head."""
    problem, other = PROBLEMS[kind](3), PROBLEMS[kind](8)
    return problem, Items(Problem(problem.head, other.x, other.y, other.lengths, other.lam))


def chosen(kind: str = "chain", **options) -> tuple[LamChoice, Problem, Items]:
    problem, held_out = problems(kind)
    return (
        choose_lam(problem.head, Items(problem), held_out, **{"lams": LAMS, "tolerance": Relative(0.05)} | options),
        problem,
        held_out,
    )


def expected_choice(points: tuple[HeldOutPoint, ...]) -> HeldOutPoint:
    """The first of the points, which come from the largest lambda to the smallest, that is near enough to the best."""
    top = max(points, key=lambda point: (point.score, point.lam))
    for point in points:
        change = (point.losses - top.losses).numpy()
        if change.mean() <= change.std(ddof=1) / len(change) ** 0.5 + 1e-15:
            return point
    return top


class TestResult:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("compiled", [True, False])
    def test_the_head_holds_the_weights_that_score_best(self, kind, compiled):
        points: list[tuple[HeldOutPoint, dict]] = []
        problem, held_out = problems(kind)
        choice = choose_lam(
            problem.head,
            Items(problem),
            held_out,
            LAMS,
            tolerance=Relative(0.1),
            solver=Solver(compiled=compiled),
            on_point=lambda point: points.append((point, copy.deepcopy(problem.head.state_dict()))),
        )
        assert [point.lam for point in choice.points] == sorted(LAMS, reverse=True)
        assert choice.points == tuple(point for point, _ in points)
        losses = [point.held_out.loss for point in choice.points]
        assert choice.best is expected_choice(choice.points)
        assert [point.score for point in choice.points] == [-loss for loss in losses]
        weights = dict((id(point), state) for point, state in points)[id(choice.best)]
        for name, weight in choice.head.state_dict().items():
            assert torch.equal(weight, weights[name])
        assert choice.head is problem.head
        assert evaluate(problem.head, problem.structure, in_order(held_out)) == choice.best.held_out

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_point_is_certified(self, kind):
        values = []
        problem, held_out = problems(kind)

        def note(point: HeldOutPoint) -> None:
            values.append(primal(problem.head, problem.structure, problem.everything(), point.lam).value)

        choice = choose_lam(problem.head, Items(problem), held_out, LAMS, tolerance=Relative(0.02), on_point=note)
        for point, value in zip(choice.points, values, strict=True):
            certificate = point.certificate
            assert certificate.lam == pytest.approx(point.lam)
            assert certificate.primal == pytest.approx(value, rel=1e-6)
            assert certificate.gap <= 0.02 * certificate.primal
            alone = solve(PROBLEMS[kind](3).head, Items(problem.copy()), point.lam)
            assert certificate.dual <= alone.primal + 1e-6
            assert certificate.primal >= alone.dual - 1e-6
        assert sum(point.passes for point in choice.points) == pytest.approx(choice.points[-1].certificate.passes)

    def test_of_equal_scores_the_largest_lambda_is_taken(self):
        choice, *_ = chosen(score=lambda head: 1.0)
        assert choice.best.lam == 1.0

    def test_a_score_of_ones_own_decides(self):
        norms = []

        def score(head) -> float:
            norms.append(sum(float(p.detach().square().sum()) for p in head.parameters()))
            return norms[-1]

        choice, *_ = chosen(score=score)
        assert [point.score for point in choice.points] == norms
        assert choice.best.lam == 0.1  # the weights grow as lambda falls

    def test_patience_leaves_out_the_smallest(self):
        scores = iter([1.0, 2.0, 1.5, 1.9, 3.0])
        choice, *_ = chosen(lams=[1.0, 0.5, 0.2, 0.1, 0.05], patience=2, score=lambda head: next(scores))
        assert [point.lam for point in choice.points] == [1.0, 0.5, 0.2, 0.1]
        assert choice.best.lam == 0.5
        assert choice.untried == (0.05,)

    def test_a_budget_leaves_out_what_it_does_not_suffice_for(self):
        lams = [1.0, 0.5, 0.2]
        for budget, tried in [(0.5, 1), (1e3, 3)]:
            choice, *_ = chosen(lams=lams, budget=budget)
            assert [point.lam for point in choice.points] == lams[:tried]
            assert choice.untried == tuple(lams[tried:])
        short, *_ = chosen(lams=lams, budget=1e3, max_passes=1.0, tolerance=Relative(1e-9), score=lambda head: 0.0)
        assert [point.lam for point in short.points] == [1.0]
        values = iter([1.0, 2.0, 3.0])
        several = {"lams": [1.0, 0.5, 0.05], "tolerance": Relative(1e-4), "score": lambda head: next(values)}
        needed = [point.passes for point in chosen(**several)[0].points]
        values = iter([1.0, 2.0, 3.0])
        most = max(needed[:2]) + 1.0
        assert needed[2] > most
        capped, *_ = chosen(**several, budget=1e3, max_passes=most)
        assert capped.best.lam == 0.5  # 0.05 scores more, and did not reach the gap

    @pytest.mark.parametrize("bounds", [(0.0, None), (-0.1, 0.15)])
    def test_bounds_hold(self, bounds):
        problem, held_out = problems("multiclass")
        name = next(iter(dict(problem.head.named_parameters())))
        choice = choose_lam(
            problem.head,
            Items(problem),
            held_out,
            [1.0, 0.3],
            solver=Solver(bounds={name: bounds}),
            tolerance=Relative(0.01),
        )
        weights = dict(problem.head.named_parameters())[name].detach()
        assert float(weights.min()) >= bounds[0]
        assert bounds[1] is None or float(weights.max()) <= bounds[1]
        alone = PROBLEMS["multiclass"](3).head
        cold = solve(alone, Items(problem.copy()), 0.3, solver=Solver(bounds={name: bounds}), tolerance=Relative(0.01))
        warm = choice.points[-1].certificate
        assert max(warm.dual, cold.dual) <= min(warm.primal, cold.primal) + 1e-9

    def test_an_interrupted_search_leaves_the_best_weights(self):
        problem, held_out = problems()
        points = []

        def stop(point: HeldOutPoint) -> None:
            points.append((point, [p.detach().clone() for p in problem.head.parameters()]))
            if len(points) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            choose_lam(problem.head, Items(problem), held_out, LAMS, on_point=stop)
        best = expected_choice(tuple(sorted((point for point, _ in points), key=lambda point: -point.lam)))
        weights = next(kept for point, kept in points if point is best)
        for parameter, weight in zip(problem.head.parameters(), weights, strict=True):
            assert torch.equal(parameter.detach(), weight)


class TestStandardError:
    def test_losses_are_those_of_the_held_out_examples(self):
        choice, problem, held_out = chosen(lams=[0.1])
        potentials = problem.head(held_out.problem.x, held_out.problem.lengths)
        target = problem.structure.check_target(held_out.problem.y, potentials)
        losses = problem.structure.task_loss(problem.structure.argmax(potentials).labeling, target).double()
        torch.testing.assert_close(choice.best.losses.sort().values, losses.sort().values)

    def test_a_difference_of_chance_takes_the_larger_lambda(self):
        def point(lam: float, *wrong: int) -> HeldOutPoint:
            losses = torch.zeros(100, dtype=torch.float64)
            losses[list(wrong)] = 1.0
            return HeldOutPoint(lam, None, None, -float(losses.mean()), 1.0, 1.0, losses)

        best = point(0.1, 1, 2, 3)
        better_at_one_worse_at_two, worse_at_three = point(1.0, 2, 3, 4, 5), point(10.0, 1, 2, 3, 4, 5, 6)
        assert chosen_of([worse_at_three, better_at_one_worse_at_two, best, point(0.01, 7, 8, 9)]).lam == 1.0
        assert chosen_of([worse_at_three, best]).lam == 0.1
        assert chosen_of([worse_at_three]).lam == 10.0

    def test_merged_parts_are_those_of_all_examples(self):
        problem, held_out = problems()
        whole = evaluate(problem.head, problem.structure, in_order(held_out))
        rows = torch.arange(len(held_out)).chunk(3)
        parts = [evaluate(problem.head, problem.structure, in_order(Part(held_out, part))) for part in rows]
        result = merge_evaluations(parts)
        assert result.loss == pytest.approx(whole.loss)
        torch.testing.assert_close(result.losses.sort().values, whole.losses.sort().values)
        assert (result.num_examples, result.num_tokens) == (whole.num_examples, whole.num_tokens)
        assert result.token_error == pytest.approx(whole.token_error)
        assert result.example_error == pytest.approx(whole.example_error)


class TestFolds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_example_is_held_out_once_and_all_are_trained_on_at_the_end(self, kind):
        problem = PROBLEMS[kind](3)
        choice = choose_lam(problem.head, Items(problem), folds=3, lams=LAMS)
        assert all(point.held_out.num_examples == problem.n for point in choice.points)
        assert choice.best is expected_choice(choice.points)
        certificate = choice.best.certificate
        assert certificate.relative_gap <= 0.01
        value = primal(problem.head, problem.structure, problem.everything(), choice.best.lam).value
        assert certificate.primal == pytest.approx(value, rel=1e-6)

    def test_each_fold_is_trained_with_lam_times_n_of_all(self):
        problem = PROBLEMS["multiclass"](3)
        choice = choose_lam(problem.head, Items(problem), folds=2, lams=[0.3, 0.1], tolerance=Relative(1e-4))
        fold = min(choice.points, key=lambda point: point.lam if point is not choice.best else math.inf)
        rest = fold.certificate.num_examples
        assert fold.certificate.lam * rest == pytest.approx(fold.lam * problem.n)


class TestGuess:
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_where_one_example_fits_itself(self, kind):
        """The definition, by enumeration; the oracle takes one of the outputs with the largest loss."""
        problem, ends = PROBLEMS[kind](3, dtype=torch.float64), []
        truth = reference(problem)
        for losses, changes in zip(truth.losses, truth.changes, strict=True):
            worst = losses == losses.max()
            squares = (changes[worst] ** 2).sum(1) / losses.max()
            ends.append((squares.min(), squares.max()))
        low, high = np.mean(ends, 0)
        assert low - 1e-9 <= 30 * problem.n * guess_lam(problem.head, Items(problem)) <= high + 1e-9
        assert high < 3 * low

    def test_it_follows_the_scale_of_features_and_of_the_loss(self):
        problem = PROBLEMS["chain"](3, dtype=torch.float64)
        before = copy.deepcopy(problem.head.state_dict())
        guess = guess_lam(problem.head, Items(problem))
        for name, weight in problem.head.state_dict().items():
            assert torch.equal(weight, before[name])
        plain = PROBLEMS["multiclass"](3, bias=False)
        scaled = Problem(plain.head, 3.0 * plain.x, plain.y, None, plain.lam)
        plainly, larger = (guess_lam(plain.head, Items(one)) for one in (plain, scaled))
        assert larger == pytest.approx(9.0 * plainly)
        counted = guess_lam(
            problem.head, Items(problem), structure=Chain(problem.structure.num_states, normalize=False)
        )
        assert counted < guess  # a larger loss needs larger weights

    @pytest.mark.parametrize(
        ("scores", "patience", "best", "more"),
        [
            ([1, 2, 3, 2, 1], None, 1.0, []),
            ([5, 4, 3, 2, 1, 6, 5], None, 30.0, [30.0, 90.0]),
            ([5, 4, 6, 5], 1, 30.0, [30.0, 90.0]),
            ([1, 2, 3, 4, 5, 6, 7, 8], None, 0.1 / 27, [0.1 / 3, 0.1 / 9, 0.1 / 27]),
        ],
    )
    def test_the_default_grid_grows_where_its_end_is_best(self, scores, patience, best, more):
        tried = iter(scores)
        choice, problem, _ = chosen(
            "multiclass", lams=None, score=lambda head: next(tried), patience=patience, tolerance=0.5
        )
        guess = guess_lam(problem.head, Items(problem))
        factors = [10.0, 3.0, 1.0, 0.3, 0.1][: len(scores) - len(more)] + more
        assert [point.lam / guess for point in choice.points] == pytest.approx(sorted(factors, reverse=True))
        assert choice.best.lam / guess == pytest.approx(best)
        assert (choice.advice is None) == (len(scores) < 8)
        for point in choice.points:
            assert point.certificate.lam == pytest.approx(point.lam)
            assert 0.0 <= point.certificate.gap <= 0.5
        assert next(tried, None) is None


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"lams": []}, "lams="),
        ({"lams": 0.1}, "lams"),
        ({"lams": ["a"]}, r"lams\[0\]="),
        ({"tolerance": "1 %"}, "tolerance="),
        ({"max_passes": 0}, "max_passes="),
        ({"patience": 0}, "patience="),
        ({"budget": 0.0}, "budget="),
        ({"score": 1.0}, "score="),
        ({"score": lambda head: math.nan}, "nan"),
        ({"on_point": "print"}, "on_point="),
        ({"solver": "fast"}, "solver="),
        ({"folds": 3}, "folds=3"),
        ({"held_out": None}, "folds=None"),
        ({"held_out": None, "folds": 1}, "folds=1"),
        ({"held_out": None, "folds": 999}, "folds=999"),
        ({"held_out": []}, "held_out"),
        ({"held_out": iter([1])}, "held_out"),
    ],
)
def test_what_does_not_fit_is_refused(options, argument):
    problem, held_out = problems()
    with pytest.raises((ValueError, TypeError), match=argument):
        choose_lam(problem.head, Items(problem), **{"lams": LAMS, "held_out": held_out} | options)


def test_a_guess_needs_examples_and_features():
    problem = PROBLEMS["multiclass"](3, bias=False)
    problem.x = torch.zeros_like(problem.x)
    for dataset in ([], iter([]), Items(problem)):
        with pytest.raises((TypeError, ValueError)):
            guess_lam(problem.head, dataset)
    alike = torch.zeros(5, 3)  # documents of one grade: every order is right
    lists = PaddedDataset(torch.ones(5, 3, 2), alike.long(), torch.full((5,), 3))
    with pytest.raises(ValueError, match="no output with a loss"):
        guess_lam(LinearRanking(2, structure=Ranking(PairSwaps())), lists)


def test_a_score_cannot_change_the_head():
    def score(head):
        with torch.no_grad():
            head.weight.zero_().add_(1.0)
        return 0.0

    (choice, *_), (same, *_) = chosen("multiclass", score=score), chosen("multiclass", score=lambda head: 0.0)
    assert torch.equal(choice.head.weight, same.head.weight)
