"""Training that is killed again and again, by ``kills.py``: nothing is lost, and all runs end in the same bits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from .measuring import FOLDER, Ask, Limit, Settings, Summary, Table, chosen

TITLE = "Kills: training that goes on from its last checkpoint"
OPTIONS: dict[str, Any] = {"kills": 200, "seed": 0, "modes": None}
QUICK = {"kills": 2}
_LINE = re.compile(r"(.*): (\d+) kills in (\d+) runs, (\d+) saves, (\d+) lost, (\d+) differing, (\d+) s")


def attack(kills: int, seed: int, modes: list[str] | None) -> list[list[Any]]:
    """Mode, kills, runs, saves, lost, differing, seconds."""
    command = [sys.executable, str(FOLDER / "kills.py"), "--kills", str(kills), "--seed", str(seed)]
    command += ["--modes", *modes] if modes else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    rows = [results.groups() for line in done.stdout.splitlines() if (results := _LINE.fullmatch(line))]
    if not rows:
        raise RuntimeError(f"kills.py ended with status {done.returncode}: {done.stdout[-500:]}")
    return [[name, *map(int, numbers)] for name, *numbers in rows]


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """All modes, one process."""
    return {"modes": ask("attack", **chosen(settings, OPTIONS, QUICK))}


def summarise(results: dict[str, Any]) -> Summary:
    """What was lost, and what differed."""
    columns = ["mode", "kills", "runs", "saves", "lost", "differing", "seconds"]
    lost, differing = (float(sum(row[place] for row in results["modes"])) for place in (4, 5))
    limits = [Limit("restarts that lost work", lost, 0.0), Limit("runs that ended otherwise", differing, 0.0)]
    return Summary([Table("Killed at random moments", columns, results["modes"])], limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"attack": attack}
