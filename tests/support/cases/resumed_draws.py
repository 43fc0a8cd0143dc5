"""A sampler that is saved in the middle of a run and goes on elsewhere."""

from __future__ import annotations

import io
from typing import Any

import torch

from cases.problems import Training, assert_same, multiclass
from torchssvm import GapBatchSampler


def run(training: Training, sampler: GapBatchSampler, steps: int) -> list[list[int]]:
    """Train for some batches, over epochs, and stop in the middle."""
    seen: list[list[int]] = []
    while True:
        for batch in sampler:
            training.step(batch)
            seen.append(batch)
            if len(seen) == steps:
                return seen


def check_resuming(options: dict[str, Any], steps: int, stop: int) -> dict[str, Any]:
    """A run that is saved after ``stop`` steps goes on with the same draws; returns the sampler's state.

    Args:
        options: Of the sampler, for 20 examples.
        steps: Of the whole run.
        stop: Where it is saved.
    """
    one = multiclass(3, n=20).train()
    whole = run(one, GapBatchSampler(one.dual, **options), steps)

    first = multiclass(3, n=20).train()
    sampler = GapBatchSampler(first.dual, **options)
    before = run(first, sampler, stop)
    file = io.BytesIO()
    torch.save({"optim": first.optim.state_dict(), "sampler": sampler.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)

    second = multiclass(3, n=20).train()
    other = GapBatchSampler(second.dual, **options)
    second.optim.load_state_dict(state["optim"])
    other.load_state_dict(state["sampler"])
    assert before + run(second, other, steps - stop) == whole
    assert_same(second.optim.state_dict(), one.optim.state_dict())
    return state["sampler"]
