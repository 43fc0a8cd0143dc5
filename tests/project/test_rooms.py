"""Which room may import which: every import in the files obeys it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"torchssvm": "torchssvm", "models/src": "torchssvm.models", "datasets/src": "torchssvm.datasets"}

MAY_IMPORT = {
    "compiler": set(),
    "core": {"compiler"},
    "kinds": {"compiler", "core"},
    "structures": {"compiler", "core", "kinds"},
    "dual": {"compiler", "core"},
    "steps": {"compiler", "core", "dual"},
    "distributed": {"compiler", "core", "steps"},
    "solvers": {"compiler", "core", "kinds", "structures", "dual", "steps", "distributed"},
    "path": {"compiler", "core", "structures", "dual", "steps", "solvers"},
    "deployment": {"core", "structures"},
    "lightning": {"compiler", "core", "structures", "dual", "steps", "solvers", "deployment", "datasets"},
    "estimators": {"compiler", "core", "structures", "dual", "steps", "solvers", "path", "deployment", "datasets"},
    "transformers": {"core", "structures", "solvers", "path", "datasets"},
    "datasets": {"compiler", "core", "structures", "steps"},
    "models": {"core", "structures", "datasets"},
    "warm": {"compiler", "core", "structures", "solvers"},
    "tag_files": {"core", "datasets", "deployment", "estimators"},
    "info": {"compiler", "warm"},
    "cli": {"core", "lightning", "warm", "tag_files", "info"},
    "__main__": {"cli"},
}
"""From the ground up. A structure knows nothing of duals; only ``lightning`` and the data modules import Lightning."""

OPTIONAL = {
    *("conllu", "jsonargparse", "lightning", "matplotlib", "maxflow", "onnx", "onnxruntime", "onnxscript", "rich"),
    *("safetensors", "scipy", "skimage", "sklearn", "torch_struct", "tqdm", "transformers", "triton"),
}
"""Packages of the extras: imported inside of functions, or in files that are themselves imported there."""


@cache
def modules() -> dict[str, Path]:
    """All modules of the library, by their installed names."""
    results = {}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            results[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return results


def test_all_files_are_read():
    assert {name.split(".")[1] for name in modules() if "." in name} == MAY_IMPORT.keys()


def test_the_table_for_contributors_says_the_same():
    """The rows of ``CONTRIBUTING.md``: a room's folder or file, what it holds, and what it imports."""
    rows = re.findall(r"^\| `([^`]*)` \| .* \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    said = {Path(place).stem: set(imports.split(", ")) - {"nothing"} for place, imports in rows}
    assert said == MAY_IMPORT


def test_the_page_on_the_architecture_lists_every_room_above_those_that_import_it():
    page = (ROOT / "docs/architecture.md").read_text().split("```")[1]
    listed = [Path(place).stem for place in re.findall(r"^ *([\w/]+/|[\w/]+\.py)  ", page, re.MULTILINE)]
    assert sorted(listed) == sorted(MAY_IMPORT)
    assert all(MAY_IMPORT[place] <= set(listed[:row]) for row, place in enumerate(listed))


def is_face(name: str) -> bool:
    return modules()[name].name == "__init__.py"


@cache
def imported(name: str, *, at_once: bool = False) -> frozenset[str]:
    """The dotted names that a module imports.

    Args:
        name: The module.
        at_once: Without those inside of functions and those for the type checker only.
    """
    tree = ast.parse(modules()[name].read_text())
    late = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    late += [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    inside = {id(node) for block in late for node in ast.walk(block)} if at_once else set()
    package = name if is_face(name) else name.rpartition(".")[0]
    results = set()
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            results |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            results |= {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(results)


def inner_imports(name: str) -> set[str]:
    """The modules of the library that a module imports, type checks and imports inside of functions included."""
    results = set()
    for dotted in imported(name):
        if not dotted.startswith("torchssvm"):
            continue
        while dotted not in modules():
            dotted = dotted.rpartition(".")[0]
        results.add(dotted)
    return results - {name}


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


@pytest.mark.parametrize("place", MAY_IMPORT)
def test_a_room_imports_the_rooms_below_it(place):
    wrong = [
        f"{name} -> {other}"
        for name in modules()
        if room(name) == place
        for other in inner_imports(name)
        if room(other) not in {place, *MAY_IMPORT[place]}
    ]
    assert not wrong


def test_no_imports_in_circles():
    """A face, an ``__init__.py`` that hands names on, is not read: files import from where a name is defined."""
    graph = {name: {other for other in inner_imports(name) if not is_face(other)} for name in modules()}
    graph = {name: others for name, others in graph.items() if not is_face(name)}
    while ends := {name for name, others in graph.items() if not others or name not in set().union(*graph.values())}:
        graph = {name: others - ends for name, others in graph.items() if name not in ends}
    assert not graph, graph


def test_the_library_imports_from_where_a_name_is_defined():
    """Never by way of the face of its own package, so that faces make no circles."""
    wrong = [
        f"{name} -> {other}"
        for name in modules()
        if not is_face(name)
        for other in inner_imports(name)
        if is_face(other) and (name == other or name.startswith(other + "."))
    ]
    assert not wrong


@pytest.mark.slow
def test_optional_packages_are_imported_late():
    """Files that import one of them at their top are not imported with the package."""
    wrong = {
        f"{name} -> {package}"
        for name in reached("torchssvm") | reached("torchssvm.datasets") | reached("torchssvm.models")
        for package in OPTIONAL
        if any(dotted.split(".")[0] == package for dotted in imported(name, at_once=True))
    }
    assert not wrong


def reached(start: str) -> set[str]:
    """The modules that ``import start`` imports."""
    result, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        while name and name not in modules():
            name = name.rpartition(".")[0]
        if name and name not in result:
            result.add(name)
            waiting += [dotted for dotted in imported(name, at_once=True) if dotted.startswith("torchssvm")]
            waiting.append(name.rpartition(".")[0])
    return result
