"""Parts of ``benchmarks/run.py`` with their measures in this process."""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def part_of(name: str) -> ModuleType:
    return importlib.import_module(f"suite.{name}")


def measured(name: str, options: dict[str, Any], quick: bool = False, repeats: int = 1) -> tuple[ModuleType, Any]:
    """The part and its results, summarised and drawn; JSON goes between, as it does between processes."""
    part, measuring = part_of(name), part_of("measuring")

    def ask(measure: str, *, threads: int | None = 1, **its: Any) -> Any:
        return json.loads(json.dumps(part.MEASURES[measure](**json.loads(json.dumps(its)))))

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = json.loads(json.dumps(part.collect(ask, measuring.Settings(repeats, quick, options))))
    finally:
        torch.set_num_threads(before)
    assert all(table.rows for table in part.summarise(results).tables)
    with tempfile.TemporaryDirectory() as folder:
        assert all(file.stat().st_size > 5_000 for file in part.draw(results, Path(folder)))
    return part, results
