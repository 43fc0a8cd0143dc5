"""The ranking example, on a small file of the same form."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/ranking.py"

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")


def test_rankers_are_compared(tmp_path, run_script):
    random, arrays = np.random.default_rng(0), {}
    for split, queries in (("train", 20), ("test", 6)):
        x = random.standard_normal((5 * queries, 4)).astype(np.float32)
        y = np.clip(np.ceil(x[:, 0]), 0, 2)
        y[::5] = 1
        arrays |= {f"x_{split}": x, f"y_{split}": y.astype(np.int8), f"queries_{split}": np.full(queries, 5)}
    np.savez(tmp_path / "ranking.npz", **arrays)
    flags = ("--data", tmp_path, "--epochs", "2", "--gap", "0.05", "--report", tmp_path / "report")
    printed = run_script(SCRIPT, *flags)
    rows = {
        line.split()[0]: float(line.split("NDCG@5 ")[1].split()[0]) for line in printed.splitlines() if "MAP" in line
    }
    assert rows.keys() == {"pairs", "NDCG", "network"}
    assert min(rows["pairs"], rows["NDCG"]) > 0.85
    assert (tmp_path / "report" / "rankings.png").stat().st_size > 5_000
