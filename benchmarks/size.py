"""How large the code is: python benchmarks/size.py [CHECKOUT], for the clone that this file lies in, or another one.

Lines of code hold a token that is no comment and no docstring. Lines that check are those of `raise` statements, with
the `if`, `for`, `with` and `try` around them whose bodies hold nothing else. Calls are counted for the third batch of
the torch loop (OCR-small, a linear chain: head, `BlockGap`, backward, `BCFW.step`) and for the second `certify`: files
and functions of the package, and moves, successive calls in different files. `--files` names the files.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("torchssvm", "models", "datasets", "tests", "benchmarks")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
SHORT = 60
LOAD = """
import importlib.util, json, sys, warnings
root = sys.argv[1]
sys.path.insert(0, root)
import torchssvm
for name in ("datasets", "models"):  # as they are installed
    place = f"{root}/{name}/src"
    spec = importlib.util.spec_from_file_location(
        f"torchssvm.{name}", f"{place}/__init__.py", submodule_search_locations=[place])
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
warnings.simplefilter("ignore")
"""
"""Imports the package of another clone, with data sets and models."""
CALLS = (
    LOAD
    + """
from torchssvm import BCFW, BlockGap, DualState, LinearChain, certify, in_order
from torchssvm.datasets import OCR
words = OCR("train", "small")

def count(run):  # files, functions of the package that are called, and successive calls in different files
    functions, moves, last = set(), 0, None
    def call(frame, event, _):
        nonlocal moves, last
        code = frame.f_code
        ours = event == "call" and code.co_filename.startswith(root + "/torchssvm/")
        if not ours or code.co_name.startswith("<") or code.co_flags & 0x20:  # lambdas, comprehensions, generators
            return
        functions.add((code.co_filename, code.co_qualname))
        moves += last not in (None, code.co_filename)
        last = code.co_filename
    sys.setprofile(call)
    run()
    sys.setprofile(None)
    return sorted({file for file, _ in functions}), len(functions), moves

head = LinearChain(128, 26)
dual = DualState.for_head(head, len(words), 0.01)
loss, steps = BlockGap(dual), BCFW(head.parameters(), dual)
batches = list(in_order(words))

def one(batch):
    steps.zero_grad()
    loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
    steps.step()

one(batches[0])
one(batches[1])
step = count(lambda: one(batches[2]))
certify(head, dual, batches)
print(json.dumps([step, count(lambda: certify(head, dual, batches))]))
"""
)


class Size(NamedTuple):
    """Counts of one file, or of several together."""

    files: int
    lines: int
    code: int
    checks: int
    short: int


def only_checks(node: ast.stmt) -> bool:
    """Whether a statement raises, or does nothing but guard statements that raise."""
    if not isinstance(node, ast.If | ast.For | ast.With | ast.Try):
        return isinstance(node, ast.Raise)
    inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
    return all(map(only_checks, inner + [one for handler in getattr(node, "handlers", []) for one in handler.body]))


def measure(file: Path) -> Size:
    """The counts of one file."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    checks: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.stmt) and only_checks(node):
            checks |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = len(text.splitlines())
    return Size(1, lines, len(code), len(checks & code), int(lines < SHORT))


def total(folder: Path) -> Size:
    """The counts of all files below a folder, or of one file."""
    files = [folder] if folder.is_file() else folder.rglob("*.py")
    return Size(*map(sum, zip(*map(measure, files), strict=True)))


def table(root: Path) -> Iterator[str]:
    """The lines that are printed."""
    yield f"{'':12} files   lines    code  checks  under {SHORT} lines"
    for name in FOLDERS:
        files, lines, code, checks, short = total(root / name)
        yield f"{name:12} {files:5} {lines:7,} {code:7,} {checks:7,} {short:6}"
    rooms = {
        place.stem: total(place).lines for place in (root / "torchssvm").glob("[!_.]*") if place.name != "py.typed"
    }
    rooms = dict(sorted(rooms.items(), key=lambda room: -room[1]))
    yield "\nlines of rooms: " + ", ".join(f"{name} {lines:,}" for name, lines in rooms.items())
    name, largest = next(iter(rooms.items()))
    yield f"largest room: {name}, {100 * largest / sum(rooms.values()):.0f} %"
    face = ast.parse((root / "torchssvm/__init__.py").read_text(encoding="utf-8"))
    (names,) = (node.value for node in face.body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node))
    yield f"names at the top level: {len(ast.literal_eval(names))}"
    here = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.check_output([sys.executable, "-c", CALLS, str(root)], env=here, text=True, cwd=root)
    for title, (files, functions, moves) in zip(("a step", "certify"), json.loads(out.splitlines()[-1]), strict=True):
        yield f"{title}: {len(files)} files, {functions} functions, {moves} moves"
        if "--files" in sys.argv:
            yield " ".join(str(Path(file).relative_to(root / "torchssvm")) for file in files)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for line in table(Path(given[0] if given else Path(__file__).parents[1]).resolve()):
        print(line)
