"""Random runs over every kind of output, beside the independent checker: what they certify holds, and is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from checker import KINDS, Trace, check, check_latent, check_processes, dtype_of, faults, make, run
from problems import THOROUGH

COUNT = 8 if THOROUGH else 2
"""Problems of each kind; the first three have both dtypes."""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_runs_claim_nothing_wrong(kind):
    assert {seed: wrong for seed in range(1, 1 + COUNT) if (wrong := check(kind, seed))} == {}


def test_rounds_with_hidden_states_claim_nothing_wrong():
    assert {seed: wrong for seed in range(1, 1 + COUNT) if (wrong := check_latent(seed))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chains", "classes", "decisions", "graphs"] if THOROUGH else ["chains", "decisions"])
def test_two_processes_claim_nothing_wrong(kind):
    check(kind, 1, steps=1)  # kernels are compiled and loaded before processes are forked
    assert not any(check_processes(kind, list(range(1, 1 + COUNT + 1))).values())


def test_the_checker_finds_what_is_wrong(tmp_path):
    trace = run("chains", 4, tmp_path / "run.pt", 3)
    assert faults(trace, "chains", 4) == []
    (found, w), *rest = trace.certificates

    def claimed(**changes: float) -> Trace:
        return replace(trace, certificates=[(replace(found, **changes), w), *rest])

    shift = 1e-7
    wrong = {
        "is below that of its weights": claimed(primal=found.primal - shift, gap=found.primal - shift - found.dual),
        "is above that of its weights": claimed(primal=found.primal + shift, gap=found.primal + shift - found.dual),
        "above the optimum": claimed(dual=found.primal, gap=0.0),
        "is not primal - dual": claimed(gap=found.gap + shift),
        "the dual fell": replace(trace, values=[*trace.values, trace.values[-1] - shift]),
        "other bits": replace(trace, resumed=(trace.resumed[0], np.nextafter(trace.resumed[1], 1.0))),
    }
    for text, told in wrong.items():
        assert any(text in fault for fault in faults(told, "chains", 4)), text


def test_both_dtypes_are_drawn():
    assert {dtype_of(seed) for seed in range(1, 3)} == {torch.float32, torch.float64}
    assert {next(make("graphs", seed).head.parameters()).dtype for seed in range(1, 3)} == {
        torch.float32,
        torch.float64,
    }
