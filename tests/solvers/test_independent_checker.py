"""Random runs over every kind of output, beside the independent checker: what they certify holds, and is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cases.checker import KINDS, Trace, check, check_latent, check_processes, dtype_of, faults, make, run
from cases.problems import THOROUGH

COUNT = max(8, THOROUGH) if THOROUGH else 2
"""Problems of each kind; the first three have both dtypes."""

pytestmark = pytest.mark.filterwarnings("ignore:the primal is 0 at zero weights")


@contextmanager
def reported(name: str) -> Iterator[dict[Any, list[str]]]:
    """Collects the faults of each problem, and prints a line (``pytest -s`` shows it)."""
    results: dict[Any, list[str]] = {}
    start = sum(os.times()[:4])  # of processes that have ended too
    yield results
    wrong = {problem: faults for problem, faults in results.items() if faults}
    print(f"{name}: {len(results)} problems, {len(wrong)} violations, {sum(os.times()[:4]) - start:.1f} CPU seconds")
    assert wrong == {}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_runs_claim_nothing_wrong(kind):
    with reported(kind) as results:
        results.update({seed: check(kind, seed) for seed in range(1, 1 + COUNT)})


def test_solvers_of_programs_are_exact_up_to_their_tolerance():
    assert check("programs", 430) == []  # its two best decisions differ by 2e-14


def test_rounds_with_hidden_states_claim_nothing_wrong():
    with reported("hidden states") as results:
        results.update({seed: check_latent(seed) for seed in range(1, 1 + COUNT)})


@pytest.mark.slow
def test_two_processes_claim_nothing_wrong():
    with reported("two processes") as results:
        results.update(check_processes(COUNT))


def test_the_checker_finds_what_is_wrong(tmp_path):
    trace = run("chains", 4, tmp_path / "run.pt", 3)
    assert faults(trace, "chains", 4) == []
    (result, w), *rest = trace.certificates

    def claimed(**changes: float) -> Trace:
        return replace(trace, certificates=[(replace(result, **changes), w), *rest])

    shift = 1e-7
    wrong = {
        "is below that of its weights": claimed(primal=result.primal - shift, gap=result.primal - shift - result.dual),
        "is above that of its weights": claimed(primal=result.primal + shift, gap=result.primal + shift - result.dual),
        "above the optimum": claimed(dual=result.primal, gap=0.0),
        "is not primal - dual": claimed(gap=result.gap + shift),
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
