"""Cold starts: CPU seconds of a first fit where no kernel has been compiled, and what a second process compiles.

Every measure is a process whose ``NUMBA_CACHE_DIR`` is a temporary folder. The chain is OCR-small, and the user's kind
the one of docs/guides/own-structure.md. The others have the first drawn problem of ``torchssvm warm``, whose run takes
hardly any time.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .measuring import FOLDER, Ask, Limit, Settings, Summary, Table, chosen

TITLE = "Cold starts: first fits without compiled kernels"
ALONE, AFTER, OWN = 12.0, 6.0, 3.0
CHAIN, USER = "chain", "a user's kind"
OPTIONS: dict[str, Any] = {"kinds": None}
QUICK = {"kinds": ["classes"]}


def first_fit(kind: str, cache: str) -> dict[str, float]:
    """Train and decode OCR, the user's kind, or the first drawn problem of another kind."""
    os.environ["NUMBA_CACHE_DIR"] = cache  # Numba is imported later
    import torch

    from torchssvm import LinearChain, evaluate, in_order, solve
    from torchssvm.compiler.jit import compiling_seconds
    from torchssvm.datasets import OCR
    from torchssvm.warm import KINDS

    torch.manual_seed(0)
    if kind == CHAIN:
        head, problems, lam = LinearChain(128, 26), OCR("train", "small"), 0.01
    elif kind == USER:
        head, problems, lam = *own_kind(Path(cache)), 0.1
    else:
        head, problems, lam = *KINDS[kind][1][0](), 1.0
    start = time.process_time()
    solve(head, problems, lam, progress=False)
    evaluate(head, head.structure, in_order(problems))
    return {"seconds": time.process_time() - start, "compiling": compiling_seconds()}


def own_kind(folder: Path) -> tuple[Any, Any]:
    """Head and data of the guide; their code is a module on disk, as users have it."""
    page = (FOLDER.parent / "docs" / "guides" / "own-structure.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    first, compiled = (next(b for b in blocks if f"class {name}(" in b) for name in ("Scores", "CompiledScores"))
    code = first.partition("head, structure =")[0] + "structure = LabelSet()\n" + compiled.partition("print(check")[0]
    (folder / "own_kind.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    module = importlib.import_module("own_kind")
    return module.head, module.train


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Each kind in an empty cache, and again; then each in the cache that the chain has left."""
    from torchssvm.warm import KINDS

    kinds = chosen(settings, OPTIONS, QUICK)["kinds"] or [*KINDS, USER]
    runs: dict[str, Any] = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory() as cache:
            runs[kind] = {name: ask("first_fit", kind=kind, cache=cache) for name in ("alone", "next process")}
    with tempfile.TemporaryDirectory() as folder:
        ask("first_fit", kind=CHAIN, cache=f"{folder}/{CHAIN}")
        for kind in kinds:
            if kind != CHAIN:
                cache = shutil.copytree(f"{folder}/{CHAIN}", f"{folder}/{kind}")
                runs[kind]["after the chain"] = ask("first_fit", kind=kind, cache=cache)
    return {"runs": runs}


def summarise(results: dict[str, Any]) -> Summary:
    """CPU seconds by kind, and the largest beside their limits."""
    runs = results["runs"]
    columns = ["kind", "alone", "after the chain", "in the next process", "compiled there, s"]
    seconds = {
        kind: [run.get(name, {}).get("seconds") for name in ("alone", "after the chain", "next process")]
        for kind, run in runs.items()
    }
    rows = [[kind, *seconds[kind], run["next process"]["compiling"]] for kind, run in runs.items()]
    others = [kind for kind in runs if kind not in (CHAIN, USER)]
    later = [seconds[kind][1] for kind in others]
    limits = [
        Limit("the chain of OCR alone", seconds.get(CHAIN, [None])[0], ALONE, " CPU s"),
        Limit("any other kind after it", max(later, default=None), AFTER, " CPU s"),
        Limit("a user's kind after it", seconds.get(USER, [None, None])[1], OWN, " CPU s"),
        Limit("compiling in a next process", max(row[-1] for row in rows), 0.0, " s"),
    ]
    return Summary([Table("A first fit, CPU seconds", columns, rows)], limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"first_fit": first_fit}
