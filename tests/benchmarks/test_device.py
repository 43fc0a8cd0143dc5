"""The script for the day that there is a device: every part works at tiny sizes on a pretended one."""

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "device.py"


def test_every_part_runs_at_tiny_sizes(run_script, tmp_path):
    pytest.importorskip("matplotlib")
    run_script(SCRIPT, "--quick", "--out", tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "device.jsonl").read_text().splitlines()]
    assert {row["part"] for row in rows} == {"machine", "kernels", "steps", "large", "training", "checks", "tests"}
    missing = {row["what"]: row["found"]["not measured"] for row in rows if "not measured" in row["found"]}
    if shutil.which("compute-sanitizer") is None:
        for tool in ("memcheck", "synccheck", "initcheck"):
            assert "not installed" in missing.pop(f"compute-sanitizer {tool}")
    for side in ("device, batches of 4", "compiled, CPU"):
        assert "quick runs read no files" in missing.pop(f"CoNLL-2000: {side}")
    assert not missing
    result = {row["what"]: row["found"] for row in rows}
    assert result["two runs, compared in bits"]["same bits"] is True
    assert result["box QP of 8 blocks"]["same bits"] is True
    for row in (row for row in rows if row["part"] == "kernels"):
        rounding = 1e-12 if row["what"].startswith("marginals") else 0.0  # the twin on the CPU sums in another order
        assert row["found"]["same bits"] in (True, False)
        assert row["found"].get("largest difference", 0.0) <= rounding, row["what"]
    assert result["each kernel again in other orders"]["exit status"] == 0
    assert (tmp_path / "race.png").exists()
    assert result["pytest"]["exit status"] == 0
