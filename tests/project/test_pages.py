"""The code of the README and of every page of docs/ runs as it stands, from top to bottom.

A line `<!-- needs: scipy, data -->` above a block names what may be missing: a package, `data` (a file that is not on
this machine), or `treebank` (a small one is written to train.conllu). What is missing skips the rest of the page.
"""

import re
from pathlib import Path

import pytest
from cases.treebanks import treebank

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^(?:<!-- needs: ([\w, ]+) -->\n+)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[list[str], str]]:
    """What each block needs, and its code."""
    return [(re.findall(r"\w+", needs), code) for needs, code in BLOCK.findall(page.read_text())]


OTHERS = {"coming-from", "reference"}  # run by test_coming_from.py and test_reference.py
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name not in OTHERS)]
PAGES = [page for page in PAGES if blocks(page)]


def run(page: Path, folder: Path) -> dict:
    """The names that the page's blocks leave behind."""
    names: dict = {"__name__": "page"}
    for needs, code in blocks(page):
        for need in needs:
            if need == "treebank":
                (folder / "train.conllu").write_text(treebank(0, 40))
                pytest.importorskip("conllu")
            elif need != "data":
                pytest.importorskip(need)
        try:
            exec(compile(code, str(page), "exec"), names)
        except FileNotFoundError as missing:
            if "data" not in needs:
                raise
            pytest.skip(str(missing))
    return names


def lightning_stops_on_the_certified_gap(names: dict, printed: str) -> None:
    assert names["gap"].certificate.relative_gap <= 0.01
    assert "1 % of the primal" in names["gap"].stopped_because


def own_structure_reaches_its_optimum(names: dict, printed: str) -> None:
    assert 0.0 <= names["certificate"].gap < 0.1 * names["certificate"].primal
    few = next(iter(names["in_order"](names["train"], batch_size=8)))
    assert names["check"](names["head"], names["LabelSet"](), few).ok


def solvers(names: dict, printed: str) -> None:
    assert names["loop"].certify().gap <= 0.01
    assert names["dual"].cache_hits > 0
    assert names["path"].gap(0.08) <= 0.3
    assert names["certificate"].gap >= 0.0
    assert names["decoded"].shape == names["words"].y.shape


def certificates(names: dict, printed: str) -> None:
    assert names["certificate"].exact
    assert "60 of 60 examples have other targets" in printed


def several_processes(names: dict, printed: str) -> None:
    assert names["certificate"].relative_gap <= 0.01
    assert names["dual"].own == range(626)
    assert names["certificate"].dual <= names["proof"].primal


def joint(names: dict, printed: str) -> None:
    assert names["gap"].certificate.gap <= 0.1
    choice = names["model"].choice
    assert choice.kept == ("solved" if choice.solved_loss <= choice.joint_loss else "joint")
    assert 0.0 <= names["certificate"].gap <= 0.1
    losses = [
        names["evaluate"](own, own.structure, names["in_order"](names["held_out"])).loss
        for own in (names["head"], names["solved"])
    ]
    assert names["kept"] is (names["solved"] if losses[1] < losses[0] else names["head"])


def segmentation(names: dict, printed: str) -> None:
    assert 0.0 <= names["certificate"].gap < 0.05


def poses(names: dict, printed: str) -> None:
    assert names["bodies"].steps == 8
    assert 0.0 <= names["certificate"].gap < 0.8 * names["certificate"].primal
    assert names["dual"].steps == 160


def matchings(names: dict, printed: str) -> None:
    assert names["certificate"].relative_gap <= 0.01


def rankings(names: dict, printed: str) -> None:
    found = float(printed.split("NDCG@5 ")[1].split()[0])
    assert 0.66 < found < 0.7  # a gap of 1 % leaves the last two digits to the machine
    assert names["places"].shape == names["test"].y.shape


def label_sets(names: dict, printed: str) -> None:
    assert bool((names["model"].pairwise >= 0.0).all())
    assert names["optim"].violation < 0.01
    assert names["decodings"]["search"].exact
    messages, search = (names["decodings"][name] for name in ("messages", "search"))
    assert (messages.value <= search.value + 1e-6).all()
    assert "accuracy 0.9846" in printed
    assert Path("interactions.png").stat().st_size > 10_000


def deployment(names: dict, printed: str) -> None:
    assert len(names["few"]) == 3
    assert all(word.isalpha() for word in names["words"])
    assert names["tags"] == [["DET", "DET"]]  # zero weights: the first state


def choosing(names: dict, printed: str) -> None:
    choice = names["choice"]
    assert choice.best.certificate.relative_gap <= 0.01
    assert choice.best.held_out.token_error < 0.3
    assert 0.1 * names["lam"] < choice.best.lam < 30 * names["lam"]


def large_outputs(names: dict, printed: str) -> None:
    assert float(names["wrong"][names["batch"].y >= 0].double().mean()) < 0.3
    assert names["words"].num_states == 100
    assert names["report"].visited / names["report"].queries < 500
    assert 0.0 <= names["certificate"].gap <= 0.1
    assert names["certificate"].violation <= 0.05


def sequences(names: dict, printed: str) -> None:
    assert names["own_tags"] == [["PERSON", "O", "PLACE"]]
    assert names["certificate"].relative_gap <= 0.01


def plain_loop_ends_with_a_certificate(names: dict, printed: str) -> None:
    certificate = names["certificate"]
    assert certificate.exact
    assert certificate.gap == pytest.approx(certificate.primal - certificate.dual)
    # The optimum is known to lie between these.
    assert certificate.dual <= 0.16556
    assert certificate.primal >= 0.16458
    assert 0.0 <= certificate.gap < 0.25
    lightning_stops_on_the_certified_gap(names, printed)


# What a page's names must show, beyond running.
SHOWS = {
    "docs/training-loops.md": plain_loop_ends_with_a_certificate,
    "docs/certificates.md": certificates,
    "docs/choosing.md": choosing,
    "docs/deployment.md": deployment,
    "docs/distributed.md": several_processes,
    "docs/joint.md": joint,
    "docs/solvers.md": solvers,
    "docs/guides/label-sets.md": label_sets,
    "docs/guides/large-outputs.md": large_outputs,
    "docs/guides/matchings.md": matchings,
    "docs/guides/own-structure.md": own_structure_reaches_its_optimum,
    "docs/guides/poses.md": poses,
    "docs/guides/rankings.md": rankings,
    "docs/guides/segmentation.md": segmentation,
    "docs/guides/sequences.md": sequences,
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(page, tmp_path)
    show = SHOWS.get(page.relative_to(ROOT).as_posix())
    if show is not None:
        show(names, capsys.readouterr().out)


def test_every_page_with_a_check_exists() -> None:
    assert {ROOT / name for name in SHOWS} <= set(PAGES)


def test_no_block_is_missed() -> None:
    for page in PAGES:
        assert page.read_text().count("```python\n") == len(blocks(page)), f"{page} has a block that the pattern misses"


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert blocks(ROOT / "README.md")
