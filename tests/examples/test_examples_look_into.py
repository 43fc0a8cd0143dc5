"""The example that looks into a model."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/look_into.py"

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")


def test_u_follows_q(tmp_path, run_script):
    words = run_script(SCRIPT, "--report", tmp_path)
    assert "q       -> u" in words
    assert (tmp_path / "weights.png").stat().st_size > 10_000
