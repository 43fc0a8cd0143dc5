"""The heads of multilabel problems, and training them."""

import numpy as np
import pytest
import torch
from cases.bounded import Bounded, optimum_within
from cases.head_cases import HeadTestCase
from cases.multilabel_problems import F, K, MultilabelProblem
from cases.problems import flat

from torchssvm import (
    Corrective,
    Labelings,
    LinearMultilabel,
    Multilabel,
    SparseFeatures,
    SparseLinearMultilabel,
    check,
)
from torchssvm.core.gradients import per_example_adjoint
from torchssvm.structures.multilabel import MessagePassing


class TestLinearMultilabel(HeadTestCase):
    bias = pairwise = True

    def make_head(self):
        return LinearMultilabel(F, K, bias=self.bias, pairwise=self.pairwise)

    def make_input(self, random, batch):
        return (torch.randn(batch, F, generator=random, dtype=torch.float64),)

    def reference(self, head, x):
        unary = torch.stack([sum(x[f] * head.by_feature(head.unary)[f, k] for f in range(F)) for k in range(K)])
        tensors = {"unary": unary + head.bias if self.bias else unary}
        return {**tensors, "pairwise": head.pairwise} if self.pairwise else tensors

    def test_interactions(self):
        head, _ = self.setting(3)
        if not self.pairwise:
            return
        a, b, c = head.pairwise.tolist()
        expected = [[0.0, a, b], [a, 0.0, c], [b, c, 0.0]]
        assert head.interactions().tolist() == expected
        head.interactions().sum().backward()
        assert head.pairwise.grad.tolist() == [2.0] * 3


@pytest.mark.variant
class TestWithoutBias(TestLinearMultilabel):
    bias = False


@pytest.mark.variant
class TestOfSomePairs(TestLinearMultilabel):
    def make_head(self):
        return LinearMultilabel(F, K, structure=Multilabel(K, pairs=torch.tensor([[0, 2], [1, 2]])))

    def test_interactions(self):
        head, _ = self.setting(3)
        a, b = head.pairwise.tolist()
        assert head.interactions().tolist() == [[0.0, 0.0, a], [0.0, 0.0, b], [a, b, 0.0]]


@pytest.mark.variant
class TestWithoutPairs(TestLinearMultilabel):
    pairwise = False


class Packed(SparseLinearMultilabel):
    """Takes columns and values in one tensor ``[B, 4]``, whatever numbers they are."""

    def forward(self, x, lengths=None):
        columns = x[:, :2].abs().round().remainder(F + 1).long() - 1
        return super().forward(SparseFeatures(columns, x[:, 2:]), lengths)


class TestSparseLinearMultilabel(TestLinearMultilabel):
    any_features = True

    def make_head(self):
        return Packed(F, K, bias=self.bias, pairwise=self.pairwise, sparse_gradient=False)

    def make_input(self, random, batch):
        columns = torch.randint(0, F + 1, (batch, 2), generator=random)
        return (torch.cat([columns.double(), torch.randn(batch, 2, generator=random, dtype=torch.float64)], 1),)

    def reference(self, head, x):
        dense = torch.zeros(F, dtype=x.dtype)
        for column, value in zip(x[:2].tolist(), x[2:], strict=True):
            place = round(abs(column)) % (F + 1) - 1
            if place >= 0:
                dense[place] += value
        return super().reference(head, dense)


@pytest.mark.variant
class TestSparseWithoutBiasAndPairs(TestSparseLinearMultilabel):
    bias = pairwise = False


def test_sparse_gradients_have_the_rows_of_the_batch():
    head = SparseLinearMultilabel(9, K).double()
    x = SparseFeatures(torch.tensor([[2, 5], [5, -1]]))
    potentials = head(x)
    parts = {"unary": torch.ones(2, K).double(), "pairwise": torch.ones(2, K).double()}
    unary, bias, pairwise = per_example_adjoint(potentials, parts, list(head.parameters()), sparse=True)
    assert unary.is_sparse
    assert unary.indices().tolist() == [[0, 0, 1], [2, 5, 5]]
    assert torch.equal(unary.to_dense(), x.dense(9, torch.float64).unsqueeze(2).expand(-1, -1, K))
    assert bias.shape == pairwise.shape == (2, K)
    potentials["unary"].sum().backward()
    assert head.unary.grad.is_sparse


ATTRACTIVE = {"pairwise": (0.0, None)}


def train(problem, storage, direction=None, oracle=None, *, bounds=None, passes=200, tolerance=1e-6):
    training = Bounded(problem, bounds or {}, storage=storage, direction=direction, oracle=oracle)
    return training.until(tolerance, passes=passes)


def test_training_within_bounds_needs_messages_only():
    problem = MultilabelProblem(5, structure=Multilabel(K, decoder=MessagePassing(10_000)))
    truth = problem.reference()
    lower = np.array([-np.inf] * (F * K + K) + [0.0] * K)
    best, weights = optimum_within(truth, lower, np.full(len(lower), np.inf))
    assert (weights[-K:] <= 1e-9).any()  # a bound binds
    certificate = train(problem, Labelings(), Corrective(), bounds=ATTRACTIVE)
    assert certificate.exact
    assert certificate.gap <= 1e-6
    assert certificate.dual - 1e-7 <= best <= certificate.primal + 1e-7
    learned = flat(problem.head.parameters()).numpy()
    assert (learned >= lower).all()
    assert problem.lam / 2 * float(((learned - weights) ** 2).sum()) <= certificate.gap + 1e-6  # strong convexity


@pytest.mark.parametrize("max_rounds", [1, 200])
def test_bounds_of_messages_certify_training_by_messages(max_rounds):
    """The dual is that of the exact problem, and the certificate encloses its optimum."""
    problem = MultilabelProblem(3, lam=0.02, structure=Multilabel(K, decoder=MessagePassing(max_rounds)))
    best = problem.reference().optimum()
    certificate = train(problem, Labelings(), Corrective(), passes=40)
    assert certificate.dual - 1e-7 <= best <= certificate.primal + 1e-7
    assert certificate.gap < 0.1


def test_head_and_structure_pass_the_check():
    problem = MultilabelProblem(5, structure=Multilabel(K, decoder=MessagePassing()), sparse=True)
    check(problem.head, problem.head.structure, problem.batch(range(6))).raise_if_wrong()
