"""Every public name has an example that runs, and stands in the reference once."""

import doctest
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
from pathlib import Path

import pytest
from cases import example_files

import torchssvm

REFERENCE = Path(__file__).parents[2] / "docs/reference"
ROOMS = (
    *("core.decoding", "core.structure", "core.marginals", "core.ranks", "steps", "path"),
    *("info", "solvers", "solvers.check", "solvers.gdmm", "solvers.kernel"),
    *("structures.arborescence", "structures.chain", "structures.decisions", "structures.graph_cut"),
    *("structures.matching", "structures.multilabel", "structures.pairwise_graph", "structures.pose"),
    *("structures.ranking", "structures.slack_rescaling"),
)
PACKAGES = (
    "torchssvm",
    *(f"torchssvm.{name}" for name in ["lightning", "datasets", "models", "estimators", "deployment", "transformers"]),
)
GRAPHS_OF_IMAGES = (
    *("GraphCache", "GraphSettings", "HorseSegmentation", "PixelSegmentation", "PrecomputedGraphs", "StaleCache"),
    *("SuperpixelGraphs",),
)
# Modules that an example needs beyond those of its package.
EXTRAS = {
    "torchssvm.TorchStruct": ("torch_struct",),
    "torchssvm.structures.decisions.IntegerProgram": ("scipy",),
    "torchssvm.lightning.Report": ("matplotlib",),
    "torchssvm.datasets.LSPET": ("PIL",),
    "torchssvm.datasets.PoseTargets": ("PIL",),
    **{
        f"torchssvm.datasets.{name}": ("conllu",)
        for name in ("Attachment", "CoNLLU", "Sentence", "attachment", "read_conllu")
    },
    **{f"torchssvm.datasets.{name}": ("skimage", "tqdm") for name in GRAPHS_OF_IMAGES},
}
# The folders of datasets that do not ship with the package.
DATA = {
    "torchssvm.datasets.GesturePhases": "gestures",
    "torchssvm.datasets.LSPET": "lspet",
    "torchssvm.datasets.PoseTargets": "lspet",
    "torchssvm.datasets.WordAlignment": "hansards",
    "torchssvm.datasets.CoNLL2000": "conll2000",
    "torchssvm.datasets.WordChains": "conll2000",
    "torchssvm.datasets.Multilabel": "multilabel",
    "torchssvm.datasets.Snakes": "snakes.npz",
}
# What calls return; their examples make the call.
RETURNED = {
    *("Certificate", "CheckReport", "Decoding", "Evaluation", "FactorwiseCertificate", "Marginals", "Objective"),
    *("PassReport", "RegularizationPath", "GraphLabels", "Segmentation", "HeadChoice", "LamChoice", "LatentReport"),
    *("SavedModel", "AlignmentErrors", "Attachment", "Chunk", "ChunkScores", "Example", "MultilabelScores"),
    *("PoseScores", "RankingScores", "SegmentationScores", "Sentence", "TaggedSentences", "ChainTruth", "StaleCache"),
    *("Solved", "TaggerOutput"),
}
# Of rooms without a list of names.
OF_MODULES = {
    "torchssvm.core.decoding": ("Decoding",),
    "torchssvm.info": ("describe_installation",),
    "torchssvm.core.marginals": ("Marginals",),
    "torchssvm.core.ranks": ("RankError",),
    "torchssvm.solvers.check": ("CheckReport",),
}
# Names of rooms that the entries of others describe.
DESCRIBED = {
    *("Atoms", "BlockSteps", "DirectionRule", "Line", "LineSearch", "OracleRule", "Order", "solve_box_qp"),
    *("Breakpoint", "HeldOutPoint", "plot", "start_at_largest_lam", "choose", "Kernel", "KernelHead", "Linear"),
    *("SupportCounts", "NBest", "viterbi", "min_cut", "roof_dual", "POSSIBLE", "best_matching", "LabelSetOracle"),
    *("best_label_sets", "max_sum_grid"),
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def public_names() -> list[str]:
    results = []
    for package in PACKAGES:
        short = package.rsplit(".", 1)[-1]
        if short in ("lightning", "transformers") and importlib.util.find_spec(short) is None:
            continue
        results += [f"{package}.{name}" for name in importlib.import_module(package).__all__]
    for room in map("torchssvm.{}".format, ROOMS):
        names = getattr(importlib.import_module(room), "__all__", OF_MODULES.get(room, ()))
        results += [f"{room}.{name}" for name in names if name not in {*torchssvm.__all__, *DESCRIBED}]
    return results


NAMES = public_names()


def named(name: str) -> object:
    package, short = name.rsplit(".", 1)
    return getattr(importlib.import_module(package), short)


def is_constant(name: str) -> bool:
    return not callable(named(name))


def example_of(name: str) -> str:
    """The docstring that shows the name; that of a base class does not count."""
    thing = named(name)
    return inspect.cleandoc((vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__) or "")


def preamble(package: str) -> dict:
    """The names that the reference tells readers to begin with: on its first page, and on that of the package."""
    names: dict = {}
    for page in ("index", package.rsplit(".", 1)[-1]):
        if (REFERENCE / f"{page}.md").exists():
            for code in re.findall(r"```python\n(.*?)```", (REFERENCE / f"{page}.md").read_text(), re.DOTALL):
                exec(code, names)
    exec(f"from {package} import *", names)
    return names


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    example_files.make(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not is_constant(name)])
def test_the_example_of_a_name_runs(name: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in EXTRAS.get(name, ()):
        pytest.importorskip(module)
    if name in DATA and not Path(os.environ.get("TORCHSSVM_DATA", "no data"), DATA[name]).exists():
        pytest.skip(f"{DATA[name]} is not here")
    monkeypatch.chdir(files)
    text = example_of(name)
    test = doctest.DocTestParser().get_doctest(text, preamble(name.rsplit(".", 1)[0]), name, None, 0)
    assert test.examples, f"the docstring of {name} has no example"
    short = name.rsplit(".", 1)[1]
    shown = "".join(example.source for example in test.examples)
    assert short in RETURNED or re.search(rf"\b{short}\b", shown), f"{name} is not in its example"
    failures: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=failures.append)
    assert result.failed == 0, "".join(failures)


def test_constants_are_in_the_example_of_another_name() -> None:
    for name in filter(is_constant, NAMES):
        package, short = name.rsplit(".", 1)
        shown = "".join(
            example_of(other) for other in NAMES if other.startswith(package + ".") and not is_constant(other)
        )
        assert re.search(rf"^>>> .*\b{short}\b|^    >>> .*\b{short}\b", shown, re.MULTILINE), f"no example shows {name}"


def in_the_reference() -> list[str]:
    results, package = [], ""
    for page in sorted(REFERENCE.glob("*.md")):
        for kind, name in re.findall(r"^\.\. (\w+):: (\S+)$", page.read_text(), re.MULTILINE):
            if kind == "currentmodule":
                package = name
            elif kind.startswith("auto"):
                results.append(name if name.startswith("torchssvm.") else f"{package}.{name}")
    return results


def test_every_public_name_is_in_the_reference_once() -> None:
    if any(importlib.util.find_spec(each) is None for each in ("lightning", "transformers")):
        pytest.skip("the names of torchssvm.lightning and torchssvm.transformers need these packages")
    packages = {*PACKAGES, *map("torchssvm.{}".format, ROOMS)}
    listed = [name for name in in_the_reference() if name.rsplit(".", 1)[0] in packages]
    assert sorted(listed) == sorted(NAMES)


def test_every_name_in_the_reference_can_be_imported() -> None:
    if any(importlib.util.find_spec(each) is None for each in ("lightning", "transformers")):
        pytest.skip("the names of torchssvm.lightning and torchssvm.transformers need these packages")
    names = in_the_reference()
    assert len(names) > 200
    assert not [name for name in names if pkgutil.resolve_name(name) is None]


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (REFERENCE / "index.md").read_text()
    [contents] = re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL)
    pages = [line for line in contents.splitlines() if line and not line.startswith(":")]
    assert sorted(pages) == sorted(page.stem for page in REFERENCE.glob("*.md") if page.stem != "index")
