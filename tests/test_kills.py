"""Trainings that are killed again and again end as those left alone, and lose nothing; ``benchmarks/kills.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

if not hasattr(os, "fork"):
    pytest.skip("processes are forked", allow_module_level=True)
pytest.importorskip("numba")
pytest.importorskip("lightning")

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))  # as it is where a script of this folder runs
try:
    import kills
finally:
    sys.path.remove(str(FOLDER))


@pytest.mark.slow
@pytest.mark.parametrize("name", kills.MODES)
@pytest.mark.filterwarnings("ignore")
def test_killed_runs_end_as_runs_left_alone(name):
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        tally = kills.attack(kills.MODES[name], 10, seed=len(name), most_runs=3)
    assert tally.differing == []
    assert tally.lost == 0
    assert tally.runs > 0


def test_a_difference_and_a_loss_are_seen(tmp_path):
    """A training that forgets what it had, or begins again, is found out."""

    def mode(forgetful: bool) -> kills.Mode:
        def train(options, folder, report, saves):
            file = folder / "number"
            number = 0
            if file.exists() and not forgetful:
                number = int(file.read_text()) - 1
            report("loaded", number)
            started = number
            while number < 12:
                number += 1
                torch.rand(2_000).sort()
                if saves:
                    (folder / "partial").write_text(str(number))
                    os.replace(folder / "partial", file)
                    report("saved", number)
            return {"started": started, "number": number}

        return kills.Mode(lambda choices: {}, train)

    for forgetful in (False, True):
        tally = kills.attack(mode(forgetful), 4, seed=0)
        assert tally.kills >= 4
        assert tally.saves > 0
        assert tally.lost > 0
    assert any("started" in where for _, where in kills.attack(mode(False), 8, seed=1).differing)


def test_states_are_compared_to_the_bit():
    a = {"x": [torch.zeros(2), 1.0], "y": "a"}
    assert list(kills.differences(a, {"x": [torch.zeros(2), 1.0], "y": "a"})) == []
    for other, where in (
        ({"x": [torch.tensor([0.0, 1e-40]), 1.0], "y": "a"}, ".x[0]: tensors"),
        ({"x": [torch.zeros(2, dtype=torch.float64), 1.0], "y": "a"}, ".x[0]: tensors"),
        ({"x": [torch.zeros(2)], "y": "a"}, ".x: lengths 2 and 1"),
        ({"x": [torch.zeros(2), 1.0]}, "['y'] is in one of them"),
        ({"x": [torch.zeros(2), 1], "y": "a"}, ".x[1]: float and int"),
        ({"x": [torch.zeros(2), 1.0], "y": "b"}, ".y: a and b"),
    ):
        assert where in "".join(kills.differences(a, other))
