"""The estimated gap between exact passes: corrected by how far it was off at the last one, in every loop."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest

from torchssvm import LinearChain, Relative, make_trainer
from torchssvm.datasets import OCR
from torchssvm.solvers import Certificate
from torchssvm.solvers.trainer import Pacing

EXACT, N = 2.0, 10
"""The gap over the sum of the last known gaps, ten epochs after an exact pass; examples."""


def counters() -> SimpleNamespace:
    return SimpleNamespace(num_examples=N, passes=10.0, cache_hits=0, gap_estimate=0.1)


def certificate(gap: float, passes: float) -> Certificate:
    calls, numbers = round(passes * N), dict.fromkeys(("drift", "seconds"), 0.0)
    return Certificate(
        primal=gap + 1.0,
        dual=1.0,
        gap=gap,
        exact=True,
        oracle_calls=calls,
        passes=passes,
        num_examples=N,
        lam=1.0,
        **numbers,
    )


def after_a_pass() -> tuple[SimpleNamespace, Pacing]:
    """Ten epochs, an exact pass that doubles the estimate, and ten epochs of visits that the cache answers."""
    now = counters()
    now.passes = 0.0
    pacing = Pacing(now, 0.11, idle_epochs=math.inf)
    now.passes = 10.0

    def make_pass() -> Certificate:
        now.passes += 1.0
        now.gap_estimate = EXACT * 0.1
        return certificate(now.gap_estimate, now.passes)

    assert pacing.gap_estimate == 0.1  # nothing is known yet
    pacing.certify(make_pass)
    return now, pacing


def test_an_estimate_is_corrected_by_the_last_exact_pass():
    now, pacing = after_a_pass()
    assert pacing.gap_estimate == pytest.approx(0.2)  # exact
    shown = []
    for hits in (10, 50, 100):  # epochs 1, 5 and 10
        now.cache_hits, now.gap_estimate = hits, 0.1
        shown.append(pacing.gap_estimate)
    assert 0.1 < shown[0] < shown[1] < shown[2]
    assert shown[2] == pytest.approx(EXACT * 0.1, rel=1e-6)


def test_an_exact_pass_comes_when_the_corrected_estimate_is_within_the_tolerance():
    now, pacing = after_a_pass()
    assert not pacing.due
    now.cache_hits = 100
    now.gap_estimate = 0.08  # within the tolerance, but the gap is probably 0.16
    assert not pacing.due
    now.gap_estimate = 0.054
    assert pacing.due


def test_one_strange_pass_does_not_take_the_estimate_away():
    now, pacing = after_a_pass()
    now.cache_hits, now.gap_estimate = 100, 1e-9
    pacing.certify(lambda: certificate(1.0, now.passes))
    now.cache_hits, now.gap_estimate = 1000, 0.1
    assert pacing.gap_estimate < 4 * 0.1


def test_a_resumed_pacing_goes_on():
    now, pacing = after_a_pass()
    now.cache_hits, now.gap_estimate = 5, 0.1
    assert not pacing.due
    resumed = Pacing(now, 0.11, idle_epochs=math.inf)
    resumed.resume(copy.deepcopy(pacing.state_dict()), [certificate(0.2, 11.0)])
    for hits in range(6, 120):
        now.cache_hits = hits
        now.gap_estimate *= 0.99
        assert resumed.gap_estimate == pacing.gap_estimate
        assert resumed.due == pacing.due


def test_what_is_shown_is_closer_to_the_next_certificate():
    words = OCR(split="train", size="small")
    trainer = make_trainer(LinearChain(128, 26), words, 27 / len(words), progress=False)
    pacing = Pacing(trainer.dual, Relative(0.02), idle_epochs=trainer.idle_epochs, value=trainer.dual.value)
    raw, shown = [], []
    while len(shown) < 8:
        trainer.step()
        if pacing.due:
            estimates = trainer.dual.gap_estimate, pacing.gap_estimate
            gap = pacing.certify(trainer.certify).gap
            raw.append(abs(math.log(estimates[0] / gap)))
            shown.append(abs(math.log(estimates[1] / gap)))
    assert sum(shown[1:]) < 0.7 * sum(raw[1:])
