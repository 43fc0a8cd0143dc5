"""The example of events."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/events.py"

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")


def test_segments_find_more_events_than_a_chain(tmp_path, run_script):
    words = run_script(SCRIPT, "--num_sequences", "24", "--lam", "0.3", "--report", tmp_path).split()
    segments, chain = float(words[-3].rstrip(",")), float(words[-1])
    assert segments > chain > 0.3
    assert (tmp_path / "events.png").stat().st_size > 3_000
