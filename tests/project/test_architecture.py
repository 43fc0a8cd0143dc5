"""The pages for contributors name files and functions that exist, and list every file of ``core``."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PLACES = sorted(set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", PAGE)))
"""Each file in the text of the page, and the function or class that the page names in it, or ""."""
OTHERS = sorted(set(re.findall(r"\b(?:torchssvm|tests|benchmarks|datasets|docs)/[\w/]+\.py", CONTRIBUTING)))


def names_in(body: list[ast.stmt]) -> set[str]:
    """Functions and classes, and methods as ``Class.method``."""
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for name in names_in(node.body)}
    return names


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_what_the_page_names_exists(file: str, name: str) -> None:
    places = [
        path for path in (ROOT / "torchssvm" / file, ROOT / "torchssvm/core" / file, ROOT / file) if path.exists()
    ]
    assert places, f"{file} does not exist"
    assert not name or name in names_in(ast.parse(places[0].read_text()).body)


@pytest.mark.parametrize("file", OTHERS)
def test_what_contributing_names_exists(file: str) -> None:
    assert (ROOT / file).exists()


def test_the_page_names_functions_of_both_loops() -> None:
    files = {file for file, name in PLACES if name}
    assert {"solvers/bcfw.py", "solvers/block_coordinate.py", "solvers/compiled/loop.py", "kinds/block.py"} <= files


def test_every_file_of_core_is_listed_once() -> None:
    listed = re.findall(r"^\| `core/([\w.]+)` \| .+ \|$", PAGE, re.MULTILINE)
    files = {path.name for path in (ROOT / "torchssvm/core").glob("*.py")} - {"__init__.py"}
    assert sorted(listed) == sorted(files)
