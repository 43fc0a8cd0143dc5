"""The latent example."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/latent.py"

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")


def test_places_are_found(tmp_path, run_script):
    printed = run_script(SCRIPT, "--num_images", "40", "--lam", "0.1", "--report", tmp_path)
    words = printed.split("wrong labels ")[1].split()
    assert float(words[0].rstrip(",")) < 0.1
    assert float(words[3].rstrip(";")) > 0.9
    assert (tmp_path / "latent.png").stat().st_size > 5_000
