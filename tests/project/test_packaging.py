"""The wheel works without the clone, and importing the package stays light."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from cases.python_process import fresh_python

ROOT = Path(__file__).resolve().parents[2]
INSTALLED_AS = {"torchssvm": "torchssvm", "models/src": "torchssvm.models", "datasets/src": "torchssvm.datasets"}
# Optional; and Numba, which takes half a second to import, and is imported for the first kernel.
LATE = [
    *("clarabel", "lightning", "matplotlib", "maxflow", "numba", "qpsolvers", "scipy", "skimage", "sklearn"),
    *("torch_struct", "triton"),
]


def sources() -> dict[str, Path]:
    """Every module of the clone by the name it is installed under."""
    modules = {}
    for folder, name in INSTALLED_AS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = [name, *file.relative_to(ROOT / folder).with_suffix("").parts]
            modules[".".join(parts).removesuffix(".__init__")] = file
    return modules


def pyproject() -> dict:
    tomllib = pytest.importorskip("tomllib", reason="the standard library reads TOML from Python 3.11 on")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from the source distribution, from a copy of the clone that no build has touched."""
    pytest.importorskip("build")
    tmp = tmp_path_factory.mktemp("wheel")
    for name in ["torchssvm", "models", "datasets", "pyproject.toml", "setup.py", "README.md", "LICENSE"]:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp / "src" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp / "src" / name)
    result = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp / "dist", tmp / "src"],
        cwd=tmp,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (file,) = (tmp / "dist").glob("torchssvm-*.whl")
    return file


@pytest.fixture(scope="module")
def target(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    code = {name for name in names if name.endswith(".py")}
    expected = set()
    for folder, name in INSTALLED_AS.items():
        for file in (ROOT / folder).rglob("*.py"):
            expected.add(f"{name.replace('.', '/')}/{file.relative_to(ROOT / folder).as_posix()}")
    assert code == expected
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"torchssvm"}
    rest = {name for name in names if ".dist-info/" not in name} - code
    assert rest == {"torchssvm/py.typed", "torchssvm/datasets/ocr/ocr_letters.npz", "torchssvm/datasets/ocr/OCR.md"}


@pytest.mark.slow
def test_the_metadata_of_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        read = {Path(n).name: archive.read(n).decode() for n in archive.namelist() if ".dist-info/" in n}
    assert "torchssvm = torchssvm.cli:main" in read["entry_points.txt"]
    assert "Apache License" in read["LICENSE"]
    assert read["top_level.txt"].split() == ["torchssvm"]
    required = [line for line in read["METADATA"].splitlines() if line.startswith("Requires-Dist")]
    unconditional = sorted(line.split()[1].split(">")[0].split("<")[0] for line in required if "extra ==" not in line)
    assert unconditional == ["numba", "numpy", "numpy", "torch"]  # numpy has another bound on Windows
    (lightning,) = [line for line in required if line.startswith("Requires-Dist: lightning")]
    assert "!=2.6.2" in lightning
    assert "!=2.6.3" in lightning


@pytest.mark.slow
def test_every_module_of_the_wheel_imports_outside_the_clone_and_the_data_comes_with_it(target, tmp_path):
    names = sorted(sources())
    assert {"torchssvm", "torchssvm.models", "torchssvm.datasets", "torchssvm.datasets.ocr.dataset"} <= set(names)
    out = fresh_python(
        "import importlib, json, sys\n"
        "from torchssvm.datasets import OCR\n"
        "data = len(OCR()), OCR.decode_word(OCR()[0].y)\n"
        f"names = {names!r}\n"
        "files = {name: importlib.import_module(name).__file__ for name in names}\n"
        "bare = [name for name in ('models', 'datasets') if name in sys.modules]\n"
        "print(json.dumps([data, files, bare]))",
        cwd=tmp_path,
        path=target,
    )
    data, files, bare = json.loads(out.splitlines()[-1])
    assert data == [626, "ommanding"]
    strays = {name: file for name, file in files.items() if not Path(file).is_relative_to(target)}
    assert not strays
    assert not bare


@pytest.mark.slow
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_this_installation_finds_the_mapped_packages_and_imports_nothing_optional_or_slow(where, tmp_path):
    out = fresh_python(
        "import importlib, json, sys\n"
        "before, loaded = set(sys.modules), {}\n"
        "for name in ('torchssvm', 'torchssvm.structures.torch_struct', 'torchssvm.models', 'torchssvm.datasets'):\n"
        "    file = importlib.import_module(name).__file__\n"
        f"    loaded[name] = file, [n for n in {LATE!r} if n in sys.modules and n not in before]\n"
        "print(json.dumps([loaded, 'datasets' in sys.modules]))",
        cwd=ROOT if where == "inside" else tmp_path,
    )
    result, bare = json.loads(out)
    assert [late for _, late in result.values()] == [[]] * 4
    assert result["torchssvm.models"][0].endswith("models/src/__init__.py")
    assert result["torchssvm.datasets"][0].endswith("datasets/src/__init__.py")
    assert not bare


def test_every_folder_is_a_package():
    packages = {name for name, file in sources().items() if file.name == "__init__.py"}
    folders = {name.rpartition(".")[0] for name, file in sources().items() if file.name != "__init__.py"}
    assert folders <= packages  # a folder without __init__.py would be left out


@pytest.mark.parametrize("name", ["datasets", "models"])
def test_a_package_of_the_same_name_is_imported_in_the_clone(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("theirs = True\n")
    fresh_python(f"import sys; sys.path.append({str(tmp_path)!r}); import {name}; assert {name}.theirs", cwd=ROOT)


def test_nothing_imports_the_bare_names():
    offenders = []
    files = [f for folder in (*INSTALLED_AS, "tests", "examples") for f in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 10
    for file in files:
        text = file.read_text(encoding="utf-8")
        if not re.search(r"\bimport\b.*\b(models|datasets)\b|\bfrom\s+(models|datasets)\b", text):
            continue  # to parse every file takes seconds
        for node in ast.walk(ast.parse(text)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            offenders += [f"{file}:{node.lineno}" for name in names if name.split(".")[0] in ("models", "datasets")]
    assert not offenders


def test_the_constraints_pin_every_requirement():
    packaging = pytest.importorskip("packaging.requirements")
    project = pyproject()["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for requirement in map(packaging.Requirement, requirements):
        name = requirement.name.lower().replace("_", "-")
        if name != "torchssvm":
            assert name in pins, f"constraints.txt has no {name}"
            assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]} is outside {requirement}"


def test_every_extra_is_part_of_all_and_has_its_row_in_the_documentation_and_its_check():
    extras = pyproject()["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert set(re.search(r"\[(.*)\]", everything).group(1).split(",")) == set(extras)
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE)) >= {*extras, "all"}
    tree = ast.parse((ROOT / ".ci/extras.py").read_text(encoding="utf-8"))
    (checks,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "CHECKS")
    assert extras.keys() <= ast.literal_eval(checks).keys()


def test_one_version_everywhere():
    """The newest heading of the changelog, the package, its metadata and the citation."""
    result = {
        re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE).group(1)
        for name, pattern in (
            ("CHANGELOG.md", r"^## (\S+?),? "),
            ("torchssvm/__init__.py", r'^__version__ = "(.*)"$'),
            ("pyproject.toml", r'^version = "(.*)"$'),
            ("CITATION.cff", r"^version: (.*)$"),
        )
    }
    assert len(result) == 1, result


def test_what_the_changelog_names_is_there():
    """The names in its newest entry: public ones, methods of public classes, or commands."""
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    names = set(re.findall(r"`([A-Za-z_]+)(?:\([^`]*)?`", newest)) - {"fit", "train", "tag", "eval", "warm", "info"}
    names -= {"Trainer", "pipeline", "cross_val_predict", "torchssvm"}  # of other packages
    rooms = ["estimators", "lightning", "datasets", "deployment", "transformers", "structures.ranking"]
    packages = [importlib.import_module(".".join(["torchssvm", *room])) for room in [[], *([each] for each in rooms)]]
    public = {name: getattr(package, name) for package in packages for name in package.__all__}
    assert len(names) > 30
    methods = {name for thing in public.values() if isinstance(thing, type) for name in dir(thing)}
    assert not names - public.keys() - methods
