"""Everything that is measured, with one command.

python benchmarks/run.py [PART ...] [--out FOLDER] [--repeats 5] [--quick] [--resume] [--set NAME=JSON ...]

Runs the parts that are named, or all; --list says which there are. Writes FOLDER/results.json, FOLDER/table.md and
figures. Parts that are in the folder already and are not run now stay, with the machine and the day that they were
measured on. Limits are about quiet machines and about full sizes. Options that a part has, its OPTIONS, are set by
--set, such as: run.py compare --set seeds=1 'solvers=["gap FW", "one-slack"]'
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from machine import describe_machine
from suite.measuring import Kept, Settings, Summary, asker

from torchssvm.core.files import write_text

PARTS = (
    *("solvers", "choice", "under_lightning", "oracles", "exact", "roofline", "baselines", "growth", "memory"),
    *("imports", "compare", "path", "kernel", "conll", "entities", "parsing", "joint", "horses", "pose"),
    *(
        "large_outputs",
        "classes",
        "label_sets",
        "segments",
        "pretrained",
        "long_texts",
        "decisions",
        "choosing",
        "cold",
        "distributed",
        "kills",
    ),
)
SCHEMA = 1


def run_part(name: str, settings: Settings, out: Path, resume: bool = False) -> dict[str, Any]:
    """Measure one part; an error is written down and does not stop the others."""
    start = time.perf_counter()
    result: dict[str, Any] = {
        "title": name,
        "settings": settings._asdict(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    try:
        part = importlib.import_module(f"suite.{name}")
        print(part.TITLE, flush=True)
        if settings.options and not hasattr(part, "OPTIONS"):
            raise ValueError(f"the part {name} has no options, and --set {', '.join(settings.options)} is for others")
        result["title"] = part.TITLE
        kept = Kept(out / f"{name}.jsonl", resume)
        collected = part.collect(asker(name, log=lambda line: print(line, flush=True), kept=kept), settings)
        summary = part.summarise(collected)
        if settings.quick:
            summary = summary._replace(limits=(), notes=[*summary.notes, "small sizes: limits are not judged"])
        result |= {"found": collected, "summary": as_json(summary), "error": None}
        result["figures"] = [file.name for file in part.draw(collected, out)]
        result["text"] = text(summary)
    except Exception as error:
        traceback.print_exc()
        result |= {"error": f"{type(error).__name__}: {error}", "text": f"failed: {error}\n", "figures": []}
    result["seconds"] = time.perf_counter() - start
    print(f"\n{result['text']}", flush=True)
    return result


def as_json(summary: Summary) -> dict[str, Any]:
    """Tables, limits with their verdicts, and notes."""
    return {
        "tables": [table._asdict() for table in summary.tables],
        "limits": [{**limit._asdict(), "verdict": limit.verdict} for limit in summary.limits],
        "notes": list(summary.notes),
    }


def text(summary: Summary) -> str:
    """The same in markdown."""
    pieces = [table.markdown() for table in summary.tables]
    if summary.limits:
        pieces.append("".join(f"- {limit}\n" for limit in summary.limits))
    if summary.notes:
        pieces.append("".join(f"- {note}\n" for note in summary.notes))
    return "\n".join(pieces)


def write(out: Path, parts: dict[str, Any]) -> None:
    """results.json and table.md."""
    content = {"schema": SCHEMA, "parts": parts}
    write_text(out / "results.json", json.dumps(content, indent=1) + "\n")
    pages = []
    for result in parts.values():
        machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
        kind = "quick, for a look only" if result["settings"]["quick"] else f"{result['settings']['repeats']} repeats"
        figures = "".join(f"\n![]({name})\n" for name in result["figures"])
        pages.append(f"## {result['title']}\n\n{result['text']}{figures}\n{result['date']}, {kind}; {machine}\n")
    write_text(out / "table.md", "\n".join(pages))


def read(out: Path) -> dict[str, Any]:
    """The parts that are in the folder already."""
    file = out / "results.json"
    if not file.exists():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{file} is not of schema {SCHEMA}: choose another --out")
    return dict(content["parts"])


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; 1 if a part failed."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="folder (default: %(default)s)")
    flags.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    flags.add_argument("--list", action="store_true", help="say what the parts measure, and do nothing else")
    flags.add_argument("--repeats", type=int, help="of every measurement (default: 5; 1 with --quick)")
    flags.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    flags.add_argument(
        "--resume", action="store_true", help="go on with parts that were cut off: nothing is measured twice"
    )
    flags.add_argument("--set", nargs="+", default=[], metavar="NAME=JSON", help="options of the parts that are run")
    args = flags.parse_args(arguments)
    if unknown := set(args.parts) - set(PARTS):
        flags.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    names = [name for name in PARTS if name in args.parts or not args.parts]
    if args.list:
        for name in names:
            print(f"{name:14} {importlib.import_module(f'suite.{name}').TITLE}")
        return 0
    try:
        options = {name: json.loads(value) for name, _, value in (one.partition("=") for one in args.set)}
    except json.JSONDecodeError as error:
        flags.error(f"--set {' '.join(args.set)}: {error}; values are JSON")
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else 5
    if repeats < 1:
        flags.error(f"--repeats must be at least 1, not {repeats}")
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        parts = read(args.out)
    except (ValueError, KeyError) as error:
        flags.error(str(error))
    for name in names:
        parts[name] = run_part(name, Settings(repeats, args.quick, options), args.out, args.resume)
        parts = {known: parts[known] for known in PARTS if known in parts}
        write(args.out, parts)
    limits = [
        (limit["verdict"], name, limit["name"])
        for name in names
        for limit in parts[name].get("summary", {}).get("limits", ())
    ]
    for verdict in ("met", "missed", "not measured"):
        print(f"limits {verdict}: {sum(one == verdict for one, _, _ in limits)}")
    failed = [name for name in names if parts[name]["error"]]
    print(f"written: {args.out / 'results.json'}, {args.out / 'table.md'}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
