"""Graph cuts in one process, and in two that torchrun starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed.py"
SMALL = ("--pictures", "6", "--side", "6", "--lam", "100", "--gap", "0.1")

pytest.importorskip("jsonargparse")
pytest.importorskip("maxflow")


def last(out):
    """Dual, primal and the number of processes of the last line."""
    primal, dual, processes = re.findall(r"primal ([\d.]+), dual ([\d.]+), .*; (\d) processes", out)[-1]
    return float(dual), float(primal), int(processes)


def test_one_process_and_two_prove_the_same_optimum(run_script, tmp_path):
    printed = last(run_script(EXAMPLE, *SMALL, "--checkpoint", tmp_path / "one.pt"))
    assert printed[1] - printed[0] <= 0.1
    assert printed[2] == 1
    file = tmp_path / "two.pt"
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE, *SMALL)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(gap):
        flags = ("--gap", gap, "--checkpoint", file)
        done = subprocess.run(
            [sys.executable, *map(str, (*command, *flags))],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return last(done.stdout)

    two = start("0.1")
    assert two[2] == 2
    assert max(two[0], printed[0]) <= min(two[1], printed[1])
    # One process goes on from where two have stopped.
    again = last(run_script(EXAMPLE, *SMALL, "--gap", "0.02", "--checkpoint", file))
    assert again[0] >= two[0]
    assert again[2] == 1


def test_a_network_trained_before_is_in_the_checkpoint(run_script, tmp_path):
    file = tmp_path / "run.pt"
    run_script(EXAMPLE, *SMALL, "--joint", "1", "--checkpoint", file)
    trained = torch.load(file, weights_only=True)["objects"]["network"]
    run_script(EXAMPLE, *SMALL, "--gap", "0.05", "--checkpoint", file)
    again = torch.load(file, weights_only=True)["objects"]["network"]
    assert all(torch.equal(trained[name], weights) for name, weights in again.items())
