"""A plain torch loop that was saved anywhere, at the ends of epochs too, goes on as if it had not been stopped."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cases.problem_data import Items
from cases.problems import assert_same, chain
from torch.utils.data import DataLoader

from torchssvm import GapBatchSampler, certify, load_checkpoint, save_checkpoint

EPOCHS, STEPS = 3, 4  # in an epoch


class Killed(Exception):
    """Stands for the end of the process."""


def train(folder: Path, killed_at: str | None, *, workers: int, counts: str, accumulate: int = 1) -> dict[str, Any]:
    """Three epochs, with a certificate after each; saved and stopped at ``killed_at``, as "step 5" or "end 1"."""
    problem = chain(3, n=8)
    training = problem.train()
    sampler = GapBatchSampler(training.dual, batch_size=2 // accumulate, seed=1, chunk=2)
    items = Items(problem)
    loader = DataLoader(items, batch_sampler=sampler, collate_fn=items.collate, num_workers=workers)
    start = step = certificates = 0
    if (folder / "run.pt").exists():
        values = load_checkpoint(folder / "run.pt", optim=training.optim, sampler=sampler)
        step, certificates = values["step"], values["certificates"]
        start = sampler.epoch if counts == "sampler" else values["epoch"]

    def save(place: str, epoch: int) -> None:
        if place == killed_at:
            values = {"epoch": epoch, "step": step, "certificates": certificates}
            save_checkpoint(folder / "run.pt", optim=training.optim, sampler=sampler, **values)
            raise Killed

    for epoch in range(start, EPOCHS):
        for number, batch in enumerate(loader, 1):
            if number % accumulate == 1 % accumulate:
                training.optim.zero_grad()
            training.backward(batch)
            if number % accumulate:
                save(f"half of step {step + 1}", epoch)
                continue
            training.optim.step()
            step += 1
            save(f"step {step}", epoch)
        save(f"before end {epoch}", epoch)
        certify(training.head, training.dual, problem.everything())
        certificates += 1
        save(f"end {epoch}", epoch + 1)
    return {
        "optim": training.optim.state_dict(),
        "sampler": sampler.state_dict(),
        "step": step,
        "certificates": certificates,
    }


@functools.cache
def left_alone(accumulate: int = 1) -> dict[str, Any]:
    """What a run that nothing stops ends with."""
    with tempfile.TemporaryDirectory() as folder:
        return train(Path(folder), None, workers=0, counts="sampler", accumulate=accumulate)


PLACES = ["step 3", "step 4", "end 0", "step 5", "step 8", "end 1", "step 12", "end 2"]


@pytest.mark.parametrize("counts", ["sampler", "loop"])
@pytest.mark.parametrize(
    "place, workers", [(place, 0) for place in PLACES] + [("step 3", 2), ("step 4", 2), ("end 0", 2)]
)
def test_every_place_of_a_loop(place, workers, counts, tmp_path):
    alone = left_alone()
    assert (alone["step"], alone["certificates"]) == (EPOCHS * STEPS, EPOCHS)
    with pytest.raises(Killed):
        train(tmp_path, place, workers=workers, counts=counts)
    assert_same(train(tmp_path, None, workers=workers, counts=counts), alone)


@pytest.mark.parametrize("first", ["step 4", "end 0", "step 7"])
@pytest.mark.parametrize("second", ["step 8", "end 1", "step 9"])
@pytest.mark.parametrize("counts", ["sampler", "loop"])
def test_a_run_that_was_stopped_twice(first, second, counts, tmp_path):
    for place in (first, second):
        with pytest.raises(Killed):
            train(tmp_path, place, workers=0, counts=counts)
    assert_same(train(tmp_path, None, workers=0, counts=counts), left_alone())


@pytest.mark.parametrize("place", ["half of step 2", "half of step 4", "step 4", "half of step 5"])
def test_a_batch_whose_step_is_not_taken_is_visited_again(place, tmp_path):
    """The gradient that it left is not in the checkpoint."""
    with pytest.raises(Killed):
        train(tmp_path, place, workers=0, counts="sampler", accumulate=2)
    problem = chain(3, n=8)
    training = problem.train()
    sampler = GapBatchSampler(training.dual, batch_size=1, seed=1, chunk=2)
    values = load_checkpoint(tmp_path / "run.pt", optim=training.optim, sampler=sampler)
    assert sampler.used == 2 * (values["step"] % STEPS) or place == "step 4"
    for _ in range(sampler.epoch, EPOCHS):
        for number, rows in enumerate(sampler, 1):
            if number % 2:
                training.optim.zero_grad()
            training.backward(rows)
            if not number % 2:
                training.optim.step()
        certify(training.head, training.dual, problem.everything())
    here, there = training.optim.state_dict(), left_alone(2)["optim"]
    for name in ("weights", "loss", "gap_estimates", "steps", "oracle_calls", "moved", "storage"):
        assert_same(here["dual"][name], there["dual"][name], name)


def test_the_end_of_an_epoch_is_a_state_of_its_own():
    training = chain(3, n=8).train()
    sampler = GapBatchSampler(training.dual, batch_size=2)
    for rows in sampler:
        training.step(rows)
        last = sampler.state_dict()
        assert sampler.in_epoch
    assert not sampler.in_epoch
    after = sampler.state_dict()
    assert (last["epoch"], last["used"], last["under_way"], last["drawn"]) == (0, STEPS, True, [])
    assert (after["epoch"], after["used"], after["under_way"]) == (1, 0, False)
    assert sampler.state_dict(used=STEPS)["epoch"] == 1
    other = GapBatchSampler(training.dual, batch_size=2)
    other.load_state_dict(last)
    assert_same(other.state_dict(), last)
    assert list(other) == []
    assert other.epoch == 0
    assert len(list(other)) == STEPS
    assert other.epoch == 1
    with pytest.raises(ValueError, match="used"):
        other.load_state_dict({**last, "used": STEPS + 1})
