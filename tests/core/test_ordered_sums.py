"""Sums into shared places have one order on every device."""

import pytest
import torch
from cases.any_order import on_a_device
from cases.kernel_problems import kernel_svm
from cases.problems import PROBLEMS, rng

from torchssvm import SparseFeatures
from torchssvm.core.row_sparse import add_at, add_rows
from torchssvm.solvers.kernel import RBF


@pytest.mark.parametrize("axes", [(), (4,)])
def test_terms_are_added_where_they_belong(axes):
    places = torch.randint(0, 3, (5, 20), generator=rng(0))
    values = torch.randn(5, 20, *axes, generator=rng(1))
    target = torch.randn(5, 3, *axes, generator=rng(2))
    expected = target.clone()
    for b in range(5):
        for p in range(20):
            expected[b, places[b, p]] += values[b, p]
    result = target.clone()
    assert add_at(result, places, values) is result
    assert torch.equal(result, expected)
    with on_a_device() as seen:
        torch.testing.assert_close(add_at(target.clone(), places, values), expected)
        assert not seen.depend
        torch.testing.assert_close(add_at(target.clone(), places, values, any_order=True), expected)
        assert seen.depend  # it was not true
    result = target[0].clone()
    assert add_rows(result, places[0], values[0]) is result
    assert torch.equal(result, expected[0])
    with on_a_device() as seen:
        torch.testing.assert_close(add_rows(target[0].clone(), places[0], values[0]), expected[0])
    assert not seen.depend
    with on_a_device() as seen:
        target[0].clone().index_add_(0, places[0], values[0])
    assert seen.depend


def test_a_column_that_comes_twice_in_a_list():
    columns = torch.randint(-1, 3, (4, 5, 9), generator=rng(0))
    features = SparseFeatures(columns, torch.randn(4, 5, 9, generator=rng(1)))
    with on_a_device() as seen:
        result = features.dense(3)
    assert not seen.depend
    torch.testing.assert_close(result, features.dense(3))


@pytest.mark.parametrize("kind", PROBLEMS)
def test_kernel_models(kind):
    """Tokens of an example share their places."""

    def run():
        problem = PROBLEMS[kind](3, dtype=torch.float32, n=8, lam=0.05)
        model = kernel_svm(problem, RBF(0.5))
        for rows in torch.randint(0, 8, (20, 3), generator=rng(1)):
            model.visit(rows)
        return model.certify()

    with on_a_device() as seen:
        there = run()
    assert not seen.depend
    here = run()
    assert max(here.dual, there.dual) <= min(here.primal, there.primal) + 1e-5
