"""Trainings that are killed again and again end as those left alone, and lose nothing; ``benchmarks/kills.py``."""

import os
import signal
import time

import pytest
import torch

pytestmark = pytest.mark.slow

if not hasattr(os, "fork"):
    pytest.skip("processes are forked", allow_module_level=True)
pytest.importorskip("lightning")

import kills  # noqa: E402  # after what it needs


@pytest.mark.parametrize("name", kills.MODES)
@pytest.mark.filterwarnings("ignore")
def test_killed_runs_end_as_runs_left_alone(name):
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        tally = kills.attack(kills.MODES[name], 3, seed=len(name), most_runs=1)
    assert tally.differing == []
    assert tally.lost == 0
    assert tally.runs > 0


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_difference_and_a_loss_are_seen(forgetful):
    """A training that goes on from the save before the last, or begins again; it kills itself once, after its saves."""

    def train(options, folder, report, saves):
        if not saves:
            time.sleep(0.1)  # others are seldom killed before they end
            return {"started": 0}
        file, killed = folder / "number", folder / "killed"
        started = int(file.read_text()) - 1 if file.exists() and not forgetful else 0
        report("loaded", started)
        for number in range(started + 1, 8):
            (folder / "partial").write_text(str(number))
            os.replace(folder / "partial", file)
            report("saved", number)
            if number == 6 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return {"started": started}

    tally = kills.attack(kills.Mode(lambda choices: {}, train), 1, seed=0, most_runs=1)
    assert tally.runs == 1
    assert tally.kills >= 1
    assert tally.saves >= 7
    assert tally.lost >= 1
    assert [where.split(":")[0] for _, where in tally.differing] == ([] if forgetful else [".started"])
