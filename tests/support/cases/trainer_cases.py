"""What every trainer does: the tests of a kind of trainer inherit them."""

from __future__ import annotations

import copy
import io
import sys
from abc import ABC, abstractmethod
from typing import Any

import pytest
import torch

from cases.problems import assert_same
from torchssvm import Relative
from torchssvm.solvers import Certificate


class FakeStream(io.StringIO):
    """What was written to a terminal, or to a log."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class TrainerTestCase(ABC):
    """Subclasses make trainers of one problem, the same each time."""

    tolerance = 0.05
    share = 0.1  # of the primal
    again = 1.0  # passes to prove what was reached before
    rounding = 1e-9

    @abstractmethod
    def make(self) -> Any:
        """A new trainer."""

    def state(self, trainer: Any) -> dict[str, Any]:
        return {"trainer": trainer.state_dict()}

    def load(self, trainer: Any, state: dict[str, Any]) -> None:
        trainer.load_state_dict(state["trainer"])

    def weights(self, trainer: Any) -> list[torch.Tensor]:
        return [p.detach().clone() for p in trainer.head.parameters()]

    def gap(self, certificate: Any) -> float:
        """What solve brings down to the tolerance."""
        return certificate.gap

    def relative(self, certificate: Any) -> float:
        """The same as a share of the primal."""
        return certificate.relative_gap

    def test_solve_goes_on_until_the_gap_is_proved(self):
        trainer, seen = self.make(), []
        proof = trainer.solve(self.tolerance, on_check=seen.append)
        assert isinstance(proof, Certificate)
        assert self.gap(proof) <= self.tolerance
        assert proof is seen[-1]
        assert all(self.gap(certificate) > self.tolerance for certificate in seen[:-1])
        steps = trainer.certify().passes
        again = trainer.solve(self.tolerance)  # nothing is left to do but to prove it
        assert self.gap(again) <= self.tolerance
        assert again.passes - steps <= 1.0 + 1e-12

    def test_solve_goes_on_until_the_gap_is_a_share_of_the_primal(self):
        trainer, seen = self.make(), []
        certificate = trainer.solve(Relative(self.share), on_check=seen.append)
        assert [self.relative(c) <= self.share for c in seen] == [False] * (len(seen) - 1) + [True]
        assert certificate is seen[-1]
        half = trainer.solve(Relative(self.share / 2))
        assert self.relative(half) <= self.share / 2
        again = trainer.solve(Relative(self.share / 2))
        assert self.relative(again) <= self.share / 2
        assert again.passes - half.passes <= self.again

    def test_solve_stops_at_max_passes_and_counts_those_before(self):
        trainer = self.make()
        certificate = trainer.solve(1e-13, max_passes=4)
        assert 4 <= certificate.passes <= 4 + 3  # a step and the certificate may overshoot
        again = trainer.solve(1e-13, max_passes=4)
        assert again.passes - certificate.passes <= 1.0
        assert again.gap == pytest.approx(certificate.gap, abs=self.rounding)

    def test_certify_moves_nothing(self):
        trainer = self.make()
        for _ in range(3):
            trainer.step()
        before = self.weights(trainer)
        first, second = trainer.certify(), trainer.certify()
        for name in ("primal", "dual", "gap", "exact", "lam", "num_examples"):
            assert getattr(second, name) == pytest.approx(getattr(first, name), abs=self.rounding)
        torch.testing.assert_close(self.weights(trainer), before, rtol=0, atol=self.rounding)
        assert first.dual <= first.primal + self.rounding
        assert first.gap == pytest.approx(first.primal - first.dual, abs=self.rounding)

    def test_steps_count_and_come_closer(self):
        trainer = self.make()
        trainer.step()
        first = trainer.certify()
        for _ in range(20):
            trainer.step()
        last = trainer.certify()
        assert last.passes > first.passes
        assert last.dual >= first.dual - self.rounding
        assert last.gap < first.gap

    def test_a_state_goes_on_to_the_same_bits(self):
        whole, resumed = self.make(), self.make()
        for _ in range(5):
            whole.step()
        state = copy.deepcopy(self.state(whole))
        resumed.step()  # what was there before must not shine through
        self.load(resumed, state)
        assert_same(self.state(resumed), state)
        for trainer in (whole, resumed):
            for _ in range(4):
                trainer.step()
        assert_same(self.state(resumed), self.state(whole))
        assert_same(self.weights(resumed), self.weights(whole))
        assert whole.certify().gap == resumed.certify().gap

    def test_the_progress_line_changes_no_bit(self, monkeypatch):
        runs = []
        for progress, terminal in ((False, True), (True, True), (True, False)):
            stream = FakeStream(terminal)
            monkeypatch.setattr(sys, "stderr", stream)
            monkeypatch.setattr("torchssvm.solvers.progress_line.EVERY", 0.0)
            trainer, seen = self.make(), []
            assert " object at " not in repr(trainer)
            last = trainer.solve(self.tolerance, on_check=seen.append, progress=progress)
            figures = [(c.primal, c.dual, c.gap, c.passes) for c in seen]
            runs.append((self.state(trainer), self.weights(trainer), figures, stream.getvalue(), last))
        (state, weights, figures, silent, _), shown, logged = runs
        assert silent == ""
        for other in (shown, logged):
            assert_same(other[0], state)
            assert_same(other[1], weights)
            assert other[2] == figures
        assert shown[3].count("\n") == 1
        assert logged[3].count("\n") >= len(figures)  # estimates too, since it may write at any time here
        assert "\r" not in logged[3]
