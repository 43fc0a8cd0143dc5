"""The code in the README runs as it stands."""

import re
from pathlib import Path

import pytest
from treebanks import treebank

README = Path(__file__).parents[2] / "README.md"
SOLVERS = README.parent / "docs/solvers.md"
TEXT = README.parent / "docs/text.md"
IMAGES = README.parent / "docs/images.md"
CERTIFICATES = README.parent / "docs/certificates.md"
JOINT = README.parent / "docs/joint.md"
CHOOSING = README.parent / "docs/choosing.md"


def code(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


BLOCKS = code(README)


def test_readme_has_its_examples() -> None:
    assert len(BLOCKS) == 10
    assert "SPEED_RATIO" not in README.read_text()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """All blocks, run one after the other in one namespace."""
    namespace: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        for block in BLOCKS:
            exec(compile(block, str(README), "exec"), namespace)
    return namespace


def test_plain_loop_ends_with_a_certificate(names: dict) -> None:
    certificate = names["certificate"]
    assert certificate.exact
    assert certificate.gap == pytest.approx(certificate.primal - certificate.dual)
    # The optimum is known to lie between these.
    assert certificate.dual <= 0.16556
    assert certificate.primal >= 0.16458
    assert 0.0 <= certificate.gap < 0.25


def test_lightning_stops_on_the_certified_gap(names: dict) -> None:
    assert names["gap"].certificate.relative_gap <= 0.01
    assert "1 % of the primal" in names["gap"].stopped_because


def test_own_structure_reaches_its_optimum(names: dict) -> None:
    certificate = names["certify"](
        names["scores"], names["labels"], [names["Batch"](names["x"], names["y"], names["torch"].arange(40))]
    )
    assert 0.0 <= certificate.gap < 0.1 * certificate.primal
    assert names["check"](
        names["scores"], names["LabelSet"](), names["Batch"](names["x"][:8], names["y"][:8], names["torch"].arange(8))
    ).ok


def test_the_page_on_solvers_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("qpsolvers")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in code(SOLVERS):
        exec(compile(block, str(SOLVERS), "exec"), names)
    assert names["loop"].certify().gap <= 0.01
    assert names["dual"].cache_hits > 0
    assert names["path"].gap(0.08) <= 0.3
    assert names["certificate"].gap >= 0.0
    assert names["decoded"].shape == names["words"].y.shape


def test_the_page_on_certificates_runs(capsys: pytest.CaptureFixture) -> None:
    names: dict = {}
    for block in code(CERTIFICATES):
        exec(compile(block, str(CERTIFICATES), "exec"), names)
    assert names["certificate"].exact
    assert "60 of 60 examples have other targets" in capsys.readouterr().out


@pytest.mark.parametrize("place", range(5))
def test_the_page_on_text_runs(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunking, own, entities, alignment, parsing = code(TEXT)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    if place == 0:
        block = chunking
    elif place >= 3:
        above = "from torchssvm import CacheOracle, CompiledBCFW, Corrective, DualState, Labelings, in_order"
        exec(f"from pathlib import Path\n{above}\nfrom torchssvm.models import chunking_chain", names)
        block = own if place == 3 else entities
    elif place == 1:
        pytest.importorskip("scipy")
        block = alignment
    else:
        (tmp_path / "train.conllu").write_text(treebank(0, 40))
        exec("from torch.utils.data import DataLoader\nfrom torchssvm import BlockGap, DualState", names)  # as above it
        block = parsing
    try:
        exec(compile(block, str(TEXT), "exec"), names)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    if place == 0:
        assert names["loop"].certify().gap <= 0.05
    elif place == 1:
        assert names["certificate"].gap <= 0.01


def test_the_page_on_choosing_runs() -> None:
    names: dict = {}
    for block in code(CHOOSING):
        exec(compile(block, str(CHOOSING), "exec"), names)
    choice = names["choice"]
    assert choice.best.certificate.relative_gap <= 0.01
    assert choice.best.held_out.token_error < 0.3
    assert 0.1 * names["lam"] < choice.best.lam < 30 * names["lam"]


def test_the_page_on_joint_training_runs() -> None:
    pytest.importorskip("lightning")
    names: dict = {}
    for block in code(JOINT):
        exec(compile(block, str(JOINT), "exec"), names)
    assert names["gap"].certificate.gap <= 0.1
    assert names["model"].choice.kept == "solved"
    assert 0.0 <= names["certificate"].gap <= 0.1
    assert names["kept"] is names["solved"]


def test_the_page_on_images_runs() -> None:
    pytest.importorskip("maxflow")
    names: dict = {}
    for block in code(IMAGES):
        exec(compile(block, str(IMAGES), "exec"), names)
    assert 0.0 <= names["certificate"].gap < 0.05
    assert names["bodies"].steps == 16
    assert 0.0 <= names["own_found"].gap < 0.8 * names["own_found"].primal
    assert names["own_dual"].steps == 160
