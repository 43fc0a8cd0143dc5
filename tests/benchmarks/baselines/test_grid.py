"""Grids of lambdas, which the regularisation path is compared with."""

import pytest
import torch
from baselines import grid_search
from cases.problem_data import Items, plainly
from cases.problems import PROBLEMS, assert_same, multiclass, reference


class TestGrid:
    LAMS = (0.25, 4.0, 1.0, 16.0)

    @pytest.mark.parametrize("warm", [False, True])
    @pytest.mark.parametrize("kind", sorted(PROBLEMS))
    def test_every_point_is_certified(self, kind, warm):
        problem = PROBLEMS[kind](1)
        truth = reference(problem)
        points = grid_search(problem.head, Items(problem), self.LAMS, tolerance=0.05, warm_start=warm, solver=plainly())
        assert [point.lam for point in points] == sorted(self.LAMS, reverse=True)
        for point in points:
            assert point.certificate.lam == pytest.approx(point.lam)
            assert point.certificate.gap <= 0.05
            truth.lam = point.lam
            weights = torch.cat([w.flatten() for w in point.weights.values()]).double().numpy()
            assert truth.primal(weights) == pytest.approx(point.certificate.primal, abs=1e-9)
            assert truth.primal(weights) - truth.optimum() <= 0.05 + 1e-6
        total = points[-1].certificate.passes if warm else sum(point.certificate.passes for point in points)
        assert sum(point.passes for point in points) == pytest.approx(total)

    def test_cold_points_do_not_depend_on_each_other(self):
        problem = multiclass(2)
        alone = grid_search(problem.copy().head, Items(problem), [0.25], tolerance=0.05)
        all_of_them = grid_search(problem.head, Items(problem), self.LAMS, tolerance=0.05)
        assert_same(alone[-1].weights, all_of_them[-1].weights)

    def test_a_limit_of_passes_is_for_each(self):
        problem = multiclass(3)
        points = grid_search(
            problem.head,
            Items(problem),
            [1e-4, 1e-5],
            tolerance=1e-9,
            warm_start=True,
            max_passes=5,
            solver=plainly(),
        )
        assert all(5 <= point.passes < 8 for point in points)
