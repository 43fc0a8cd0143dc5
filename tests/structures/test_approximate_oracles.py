"""Approximate oracles: certificates from bounds, and that everything shown says so."""

import pytest
import torch
from cases.approximate_oracles import Adversary
from cases.problems import PROBLEMS, examples, multiclass, reference
from cases.top_label_sets import LabelSets, label_sets
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    DualState,
    GapBatchSampler,
    LinearMulticlass,
    Multiclass,
    StructuredHinge,
    certify,
    evaluate,
)
from torchssvm.core.decoding import Decoding
from torchssvm.steps import LargestGap

SEEDS = st.integers(0, 2**31 - 1)


@examples(10)
@given(seed=SEEDS, kind=st.sampled_from(sorted(PROBLEMS)), looseness=st.sampled_from([0.0, 0.25]))
def test_certificates_are_bounds_and_are_not_called_exact(seed, kind, looseness):
    problem = PROBLEMS[kind](seed)
    truth = reference(problem)
    adversary = problem.head.structure = Adversary(problem.structure, looseness)
    training = problem.train()
    for rows in ([0], [1, 2], [3, 4, 0], [2], [1, 1]):
        adversary.floor = lambda best: 0.5 * best
        training.step(rows)
        certificate = certify(training.head, training.dual, problem.everything(2))  # the oracle errs here too
        primal = truth.primal(training.weights())
        assert not certificate.exact
        assert certificate.primal == pytest.approx(primal + looseness, abs=1e-9)
        assert certificate.dual == pytest.approx(training.dual.value(), abs=1e-9)
        assert 0 <= certificate.dual <= primal + 1e-9
        assert certificate.gap == pytest.approx(certificate.primal - certificate.dual, abs=1e-12)
        # What the outputs themselves reach is no bound: the sum of their gaps is never more than the true gap.
        assert float(training.dual.gap_estimates.sum()) <= certificate.gap + 1e-9


def test_without_a_bound_nothing_is_certified_or_trained():
    class NoBound(LabelSets):
        def augmented_argmax(self, potentials, target):
            return Decoding(target, exact=False)

    head, _, batch = label_sets()
    dual = DualState.for_head(head, 5, 0.1, structure=NoBound(4, 2))
    optim = BCFW(head.parameters(), dual)
    with pytest.raises(ValueError, match="bound=None"):
        certify(head, dual, [batch])
    with pytest.raises(ValueError, match="bound=None"):
        BlockGap(dual)(head(batch.x), batch.y, batch.index)
    with pytest.raises(ValueError, match="bound=None"):
        StructuredHinge(NoBound(4, 2))(head(batch.x), batch.y)
    assert dual.steps == dual.oracle_calls == 0
    assert not optim.state_dict()["state"]


def test_one_inexact_batch_makes_the_certificate_inexact():
    class Sometimes(Multiclass):
        def augmented_argmax(self, potentials, target):
            certificate = super().augmented_argmax(potentials, target)
            return certificate if 0 in target else certificate._replace(bound=certificate.value + 1.0, exact=False)

    x, y = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 0, 0])
    head = LinearMulticlass(3, 2, structure=Sometimes(2))
    dual = DualState.for_head(head, 6, 0.1)
    batches = [Batch(x[i : i + 2], y[i : i + 2], torch.arange(i, i + 2)) for i in (0, 2, 4)]
    certificate = certify(head, dual, batches)
    assert not certificate.exact
    assert certificate.primal == pytest.approx(1.0 + 2 / 6)
    head.structure = Multiclass(2)
    assert certify(head, DualState.for_head(head, 6, 0.1), batches).exact


def test_no_known_gap_does_not_end_the_drawing():
    """Estimates are lower bounds here: all of them zero means that the oracle finds nothing, not that none is left."""
    problem = multiclass(1, n=6)
    adversary = problem.head.structure = Adversary(problem.structure)
    adversary.floor = lambda best: 0 * best
    training = problem.train()
    certificate = certify(training.head, training.dual, problem.everything())
    assert training.dual.gap_estimate == 0.0 < certificate.gap
    for order in (None, LargestGap()):
        drawn = [i for rows in GapBatchSampler(training.dual, batch_size=2, order=order) for i in rows]
        assert len(drawn) == 6


def test_an_evaluation_says_whether_decoding_was_exact():
    class Guesses(LabelSets):
        def argmax(self, potentials):
            return Decoding(super().argmax(potentials), bound=potentials.single.sum(1), exact=False)

    head, structure, batch = label_sets()
    assert evaluate(head, structure, [batch]).exact
    assert not evaluate(head, Guesses(4, 2), [batch]).exact
