import copy
import functools
import math

import numpy as np
import pytest
import torch
from cases.problem_data import Items, plainly
from cases.problems import PROBLEMS, Problem, assert_same, chain, examples, multiclass, reference, rng
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import DualState, Labelings, MeanParts, Weights, certify
from torchssvm.path import (
    Certified,
    Heuristic,
    PathRun,
    RegularizationPath,
    regularization_path,
    start_at_largest_lam,
)
from torchssvm.solvers import EveryPasses

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))
STORAGES = st.sampled_from([MeanParts, Weights])
EVERY_STORAGE = [MeanParts, Weights, Labelings, functools.partial(Labelings, 2)]


def vector(weights: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([w.flatten() for w in weights.values()]).double().numpy()


def follow(problem: Problem, **options) -> RegularizationPath:
    options = {"epsilon": 0.1, "lam_min": 0.2, "solver": plainly()} | options
    return regularization_path(problem.head, Items(problem), **options)


def two_of_a_kind(classes: int = 4) -> Problem:
    """The same features with labels 1 and 2: the bound of Algorithm 6 is the gap."""
    problem = multiclass(0, n=2, classes=classes, features=2)
    problem.x[1] = problem.x[0]
    problem.y = torch.tensor([1, 2])
    return problem


class TestRescale:
    @examples(10)
    @given(seed=SEEDS, kind=KINDS, storage=st.sampled_from(EVERY_STORAGE), rho=st.floats(0.01, 1.0))
    def test_gaps_follow_in_closed_form(self, seed, kind, storage, rho):
        """[G16] Proposition 1, against an exact pass and against the definition of the primal."""
        problem = PROBLEMS[kind](seed)
        training = problem.train(storage=storage())
        training.run([[0, 1], [2], [3, 0], [4, 1]])
        dual = training.dual
        before = certify(training.head, dual, problem.everything(2))
        weights = training.weights().clone()
        slope = float(dual.loss.sum()) - dual.lam * float(weights @ weights)
        dual.rescale(rho)
        assert torch.equal(training.weights(), weights)
        assert dual.lam == pytest.approx(rho * before.lam)
        assert dual.storage.lam == dual.lam
        estimates = dual.gap_estimates.clone()
        after = certify(training.head, dual, problem.everything(2))
        assert after.drift < 1e-12
        assert after.gap == pytest.approx(before.gap + (1 - rho) * slope, abs=1e-12)
        truth = reference(problem)
        truth.lam = dual.lam
        assert after.primal == pytest.approx(truth.primal(weights), abs=1e-10)
        if storage is Weights:  # it knows the change of each block
            torch.testing.assert_close(estimates, dual.gap_estimates, rtol=0, atol=1e-12)
        elif bool((estimates > 0).all()):  # no part of the change was cut off at zero
            assert float(estimates.sum()) == pytest.approx(after.gap, abs=1e-12)

    @pytest.mark.parametrize("storage", EVERY_STORAGE)
    @pytest.mark.parametrize("lam", [0.01, 7.0])
    def test_another_lam_for_the_same_dual(self, storage, lam):
        problem = chain(4)
        training = problem.train(storage=storage()).run([[0, 1], [2, 3]])
        certify(training.head, training.dual, problem.everything())  # leaves recomputed weights to start from
        weights, loss, old = training.weights().clone(), training.dual.loss.clone(), training.dual.lam
        training.dual.change_lam(lam)
        torch.testing.assert_close(training.weights(), weights * (old / lam))
        assert torch.equal(training.dual.loss, loss)
        assert bool(training.dual.gap_estimates.isinf().all())
        assert certify(training.head, training.dual, problem.everything()).drift < 1e-12
        training.dual.rescale(0.5)
        training.step([4, 1])
        assert certify(training.head, training.dual, problem.everything()).drift < 1e-12


class TestLargestLam:
    @examples(8)
    @given(seed=SEEDS, kind=KINDS, storage=STORAGES, tolerance=st.sampled_from([0.9, 0.09, 0.001]))
    def test_algorithm_6(self, seed, kind, storage, tolerance):
        """Against its definition, with all outputs listed."""
        problem = PROBLEMS[kind](seed)
        truth = reference(problem)
        worst = [losses.argmax() for losses in truth.losses]  # the sets of outputs tie: any of them will do
        dual = DualState.for_head(problem.head, problem.n, 1.0, storage=storage())
        bound = start_at_largest_lam(problem.head, dual, Items(problem), tolerance=tolerance)
        assert bound == pytest.approx(tolerance)
        assert dual.loss.tolist() == pytest.approx(
            [losses[i] / problem.n for losses, i in zip(truth.losses, worst, strict=True)]
        )
        psi = dual.lam * torch.nn.utils.parameters_to_vector(problem.head.parameters()).detach().numpy()
        theta = [(changes @ psi).max() for changes in truth.changes]  # changes are -psi_i(y)
        assert dual.lam == pytest.approx((psi @ psi + np.mean(theta)) / tolerance)
        assert dual.oracle_calls == 2 * problem.n
        assert dual.gap_estimate >= tolerance * (1 - 1e-9)  # line 14: upper bounds that add up to the bound
        certificate = certify(problem.head, dual, problem.everything(2))
        assert certificate.drift < 1e-10
        assert certificate.gap <= tolerance * (1 + 1e-9)

    @pytest.mark.parametrize("storage", [MeanParts, Weights])
    def test_the_bound_is_the_gap_where_the_paper_says_so(self, storage):
        """Where an output with the largest loss is also the best without the loss, eq. 11 holds with equality."""
        problem = two_of_a_kind()
        dual = DualState.for_head(problem.head, 2, 1.0, storage=storage())
        start_at_largest_lam(problem.head, dual, Items(problem), tolerance=0.07)
        assert certify(problem.head, dual, problem.everything()).gap == pytest.approx(0.07)

    @examples(6)
    @given(seed=SEEDS, kind=KINDS, larger=st.floats(1.0, 1e6))
    def test_every_larger_lam_is_served(self, seed, kind, larger):
        problem = PROBLEMS[kind](seed)
        path = follow(problem, lam_min=1e9)
        assert len(path.points) == 1
        lam = larger * path.points[0].lam
        truth = reference(problem)
        truth.lam = lam
        weights = vector(path.weights(lam))
        alphas_value = sum(losses.max() for losses in truth.losses) / problem.n - lam / 2 * weights @ weights
        value = truth.primal(weights) - alphas_value
        assert value <= path.gap(lam) + 1e-12 <= 0.09 + 1e-9
        assert path.norm(lam) == pytest.approx(np.linalg.norm(weights))

    def test_examples_without_a_loss_stay_at_their_targets(self):
        cost = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [1.0, 2.0, 0.0]])
        problem = multiclass(1, n=8, cost=cost)
        dual = DualState.for_head(problem.head, 8, 1.0)
        start_at_largest_lam(problem.head, dual, Items(problem), tolerance=0.05)
        assert (8 * dual.loss).tolist() == pytest.approx(cost[problem.y].amax(1).tolist())
        assert certify(problem.head, dual, problem.everything()).gap <= 0.05 * (1 + 1e-9)


class Verify:
    """At every breakpoint, exact passes at random lambdas with the dual rescaled to them."""

    def __init__(self, problem: Problem | None, batches, seed: int = 0, each: int = 1) -> None:
        self.problem, self.batches, self.random, self.each = problem, batches, rng(seed), each
        self.gaps: list[tuple[float, float]] = []

    def __call__(self, run: PathRun) -> None:
        path = run.path
        lowest = max(path.lowest, path.points[-1].lam * 1e-3)
        for _ in range(self.each):
            share = float(torch.rand((), generator=self.random))
            lam = path.points[-1].lam * (lowest / path.points[-1].lam) ** share
            head, dual = copy.deepcopy((run.trainer.head, run.dual))
            dual.rescale(lam / dual.lam)
            self.gaps.append((lam, certify(head, dual, self.batches, refresh=False).gap))


class TestPath:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "kind, dtype, storage",
        [  # every two of a kind, a dtype and a storage
            ("chain", torch.float32, MeanParts),
            ("chain", torch.float64, Weights),
            ("multiclass", torch.float32, Weights),
            ("multiclass", torch.float64, MeanParts),
            ("chain", torch.float32, None),  # the library's choice: the compiled loop
            ("multiclass", torch.float64, None),
        ],
    )
    def test_every_lambda_is_within_epsilon_of_the_optimum(self, kind, dtype, storage):
        problem = PROBLEMS[kind](3, dtype=dtype)
        truth = reference(problem)
        verify = Verify(problem, problem.everything(2))
        path = follow(
            problem, lam_min=0.3, solver=None if storage is None else plainly(storage=storage()), on_breakpoint=verify
        )
        assert path.certified
        assert path.lowest <= 0.3
        assert len(path.points) > 5
        assert (path.breakpoints[1:] < path.breakpoints[:-1]).all()
        slack = 1e-6 if dtype == torch.float32 else 1e-9
        for lam, gap in verify.gaps:
            assert gap <= 0.1 + slack
            assert gap == pytest.approx(path.gap(lam), abs=slack)  # the closed form, at a lambda in between
        for lam in torch.logspace(math.log10(0.3), math.log10(3 * path.points[0].lam), 6).tolist():
            truth.lam = lam
            assert -1e-6 <= truth.primal(vector(path.weights(lam))) - truth.optimum() <= path.gap(lam) + 1e-6
            assert path.gap(lam) <= 0.1 + 1e-12

    def test_the_next_breakpoint_is_where_the_gap_is_epsilon(self):
        path = follow(multiclass(4))
        for point, below in zip(path.points, path.points[1:], strict=False):
            assert path.gap(math.nextafter(below.lam, math.inf)) == pytest.approx(0.1)
            assert path.at(below.lam) is below
            assert path.at(math.nextafter(below.lam, math.inf)) is point

    def test_the_end_is_recognised(self):
        """Three examples in six dimensions can be separated: some weights serve every smaller lambda."""
        problem = multiclass(5, n=3, features=6)
        verify = Verify(problem, problem.everything(), each=5)
        path = follow(problem, lam_min=0.0, on_breakpoint=verify)
        assert path.complete
        assert path.lowest == 0.0
        last = path.points[-1]
        assert last.slope <= 0.1 - last.gap
        assert max(gap for _, gap in verify.gaps) <= 0.1 + 1e-9
        truth = reference(problem)
        truth.lam = 1e-12
        assert truth.primal(vector(path.weights(1e-12))) <= 0.1
        assert path.gap(1e-12) <= 0.1

    def test_a_path_that_does_not_end_stops_with_its_passes(self):
        problem = multiclass(5, n=12, features=1)  # cannot be separated
        path = follow(problem, lam_min=0.0, max_passes=100)
        assert not path.complete
        assert 0.0 < path.lowest < path.points[-1].lam
        assert path.gap(path.lowest) <= 0.1 + 1e-12
        with pytest.raises(ValueError, match="lam="):
            path.weights(path.lowest * 0.99)

    def test_what_passes_run_out_on_is_not_promised(self):
        problem = multiclass(6, n=12)
        path = follow(problem, lam_min=0.0, epsilon=0.01, max_passes=20, solver=plainly(schedule=EveryPasses(100)))
        assert all(point.gap <= 0.01 for point in path.points)

    def test_an_interrupted_step_leaves_no_hole(self):
        """The dual was rescaled, and the training after it failed: going on must not go further down first."""

        class Failing(Items):
            def collate(self, items):
                nonlocal broken
                if broken and len(run.path.points) == 4:
                    broken = False
                    raise OSError("the disk is gone")
                return super().collate(items)

        broken = False
        problem = chain(5, lam=0.3)
        run = PathRun(problem.head, Failing(problem), epsilon=0.1, lam_min=0.02, solver=plainly())
        while len(run.path.points if run._points else ()) < 4:
            assert run.advance()
        broken, served = True, run.path.lowest
        with pytest.raises(OSError, match="disk"):
            run.advance()
        assert not broken
        assert run.path.lowest == served
        resumed = PathRun(problem.copy().head, Items(problem), epsilon=0.1, lam_min=0.02, solver=plainly())
        resumed.load_state_dict(run.state_dict())
        for one in (run, resumed):
            assert one.advance()
            assert one.path.points[4].lam == pytest.approx(served)
            assert one.path.gap(served * (1 + 1e-9)) <= 0.1 + 1e-9

    def test_heuristic(self):
        problem = chain(7)
        exact = follow(problem.copy(), lam_min=0.5, rule=Certified())
        quick = follow(problem, lam_min=0.5, rule=Heuristic())
        assert not quick.certified
        assert quick.kappa == 0.7
        assert quick.lowest <= 0.5
        with pytest.raises(RuntimeError, match="heuristic"):
            quick.gap(1.0)
        truth = reference(problem)
        for lam in (0.5, 3.0):
            assert quick.gap_estimate(lam) <= 0.1 + 1e-12
            truth.lam = lam
            # no proof, but these are small problems: not far off
            assert truth.primal(vector(quick.weights(lam))) - truth.optimum() <= 0.2
        assert exact.gap(0.5) == exact.gap_estimate(0.5)


class TestResult:
    def test_queries(self):
        problem = multiclass(1)
        path = follow(problem)
        for query in (path.weights, path.gap, path.norm):
            with pytest.raises(ValueError, match="lam"):
                query(math.nan)
        path.apply(problem.head, 0.2)
        result = torch.nn.utils.parameters_to_vector(problem.head.parameters()).detach().double().numpy()
        assert (result == vector(path.weights(0.2))).all()
        other = multiclass(1, classes=4).head
        with pytest.raises(ValueError, match="head"):
            path.apply(other, 0.2)
        weights = path.weights(0.2)
        next(iter(weights.values())).fill_(7.0)
        assert (vector(path.weights(0.2)) == result).all()

    def test_scores_leave_the_weights(self):
        problem = multiclass(2)
        path = follow(problem)
        before = torch.nn.utils.parameters_to_vector(problem.head.parameters()).clone()
        scores = path.scores(
            problem.head, lambda: float(sum(p.detach().square().sum() for p in problem.head.parameters()))
        )
        assert list(scores) == path.breakpoints.tolist()
        assert list(scores.values()) == pytest.approx([path.norm(lam) ** 2 for lam in scores])
        assert torch.equal(torch.nn.utils.parameters_to_vector(problem.head.parameters()), before)
        assert list(path.scores(problem.head, lambda: 1.0, [0.3])) == [0.3]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_saved_and_loaded_to_the_bit(self, dtype, tmp_path):
        path = follow(chain(3, dtype=dtype), epsilon=0.3)
        path.save(tmp_path / "path.pt")
        assert [file.name for file in tmp_path.iterdir()] == ["path.pt"]
        loaded = RegularizationPath.load(tmp_path / "path.pt")
        assert_same(loaded.state_dict(), path.state_dict())
        assert_same(loaded.weights(0.7), path.weights(0.7))
        assert loaded.gap(0.7) == path.gap(0.7)

    @pytest.mark.parametrize("rule", [Certified(), Heuristic()])
    @pytest.mark.parametrize("storage", [MeanParts, Weights, None])
    def test_resumed_to_the_bit(self, rule, storage, tmp_path):
        def start(**options):
            problem = chain(5, dtype=torch.float32)
            return problem, follow(
                problem,
                rule=rule,
                epsilon=0.2,
                solver=None if storage is None else plainly(storage=storage()),
                **options,
            )

        def keep(run: PathRun) -> None:
            if len(run.path.points) == 4:
                torch.save(run.state_dict(), tmp_path / "run.pt")

        problem, whole = start(on_breakpoint=keep)
        assert len(whole.points) > 6
        state = torch.load(tmp_path / "run.pt", weights_only=True)
        other, resumed = start(resume=state)
        assert_same(
            [point._replace(seconds=0.0)._asdict() for point in resumed.points],
            [point._replace(seconds=0.0)._asdict() for point in whole.points],
        )
        assert resumed.lowest == whole.lowest
        for p, q in zip(problem.head.parameters(), other.head.parameters(), strict=True):
            assert torch.equal(p, q)

    def test_a_run_of_something_else_is_not_resumed(self):
        states = []
        follow(multiclass(6), on_breakpoint=lambda run: states.append(run.state_dict()))
        for options in ({"epsilon": 0.2}, {"rule": Heuristic()}):
            with pytest.raises(ValueError, match=next(iter(options))):
                follow(multiclass(6), resume=states[1], **options)
        run = PathRun(multiclass(6).head, Items(multiclass(6)), epsilon=0.1, lam_min=0.05, solver=plainly())
        broken = copy.deepcopy(states[1])
        broken["dual"]["loss"][0] = math.nan
        lam = run.dual.lam
        with pytest.raises(ValueError, match="damaged"):
            run.load_state_dict(broken)
        assert run.dual.lam == run.dual.storage.lam == lam


def without_influence() -> Problem:
    problem = multiclass(2, bias=False)
    problem.x.zero_()
    return problem


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: follow(multiclass(9), epsilon=math.nan), "epsilon="),
        (lambda: follow(multiclass(9), lam_min=-1.0), "lam_min="),
        (lambda: follow(multiclass(9), max_passes=0), "max_passes="),
        (lambda: follow(without_influence()), "weights"),
        *((lambda rule=rule: rule(1.0), "kappa=") for rule in (Certified, Heuristic)),
        *((lambda factor=factor: multiclass(7).train().dual.rescale(factor), "factor=") for factor in (0.0, 1.5)),
        *((lambda lam=lam: multiclass(7).train().dual.change_lam(lam), "lam=") for lam in (-2.0, math.nan)),
    ],
)
def test_what_does_not_fit_is_refused(call, argument):
    with pytest.raises(ValueError, match=argument):
        call()


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"hello"])
def test_damaged_files_are_named(tmp_path, damage):
    file = tmp_path / "path.pt"
    follow(multiclass(4), epsilon=0.3).save(file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"path.pt"):
        RegularizationPath.load(file)


def test_changed_states_are_refused():
    state = follow(multiclass(4), epsilon=0.3).state_dict()
    for wrong in ({**state, "format": 99}, *({k: v for k, v in state.items() if k != name} for name in state)):
        with pytest.raises(ValueError):
            RegularizationPath.from_state_dict(wrong)
