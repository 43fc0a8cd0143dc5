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


# What a page's names and what it printed must show, beyond running.
CLAIMS = {
    "README.md": ["float(printed.split('%')[-2].split('(')[-1]) < 6.0"],  # the torch loop ends with a useful gap
    "docs/training-loops.md": [
        "certificate.exact and 0.0 <= certificate.relative_gap <= 0.05",
        "certificate.dual <= 0.41459 and certificate.primal >= 0.41440",  # the optimum is known to lie between
        "gap.certificate.relative_gap <= 0.01",
    ],
    "docs/certificates.md": ["certificate.exact", "'60 of 60 examples have other targets' in printed"],
    "docs/choosing.md": [
        "choice.best.certificate.relative_gap <= 0.01 and choice.best.held_out.token_error < 0.3",
        "0.1 * lam < choice.best.lam < 30 * lam",
    ],
    "docs/deployment.md": [
        "len(few) == 3 and all(word.isalpha() for word in words)",
        "tags == [['DET', 'DET']]",  # zero weights: the first state
    ],
    "docs/distributed.md": [
        "certificate.relative_gap <= 0.01 and dual.own == range(626) and certificate.dual <= proof.primal"
    ],
    "docs/joint.md": [
        "gap.certificate.gap <= 0.1 and 0.0 <= certificate.gap <= 0.1",
        "model.choice.kept == ('solved' if model.choice.solved_loss <= model.choice.joint_loss else 'joint')",
        "kept is min((head, solved), key=lambda one: evaluate(one, one.structure, in_order(held_out)).loss)",
    ],
    "docs/look-into-a-model.md": [
        "'q -> u' in printed and 'n -> g' in printed and 'y -> (end)' in printed",
        "len(against) == 5 and max(frame.weight) == frame.weight[0]",
    ],
    "docs/solvers.md": [
        "loop.certify().gap <= 0.01 and dual.cache_hits > 0 and path.gap(0.08) <= 0.3 and certificate.gap >= 0.0",
        "decoded.shape == words.y.shape",
    ],
    "docs/guides/label-sets.md": [
        "bool((model.pairwise >= 0.0).all()) and optim.violation < 0.01 and decodings['search'].exact",
        "bool((decodings['messages'].value <= decodings['search'].value + 1e-6).all())",
        "fitted.thresholds_.max() < 0.0",
        "'accuracy 0.9846' in printed",
    ],
    "docs/guides/large-outputs.md": [
        "float(wrong[batch.y >= 0].double().mean()) < 0.3 and words.num_states == 100",
        "report.visited / report.queries < 500 and 0.0 <= certificate.gap <= 0.1 and certificate.violation <= 0.05",
    ],
    "docs/guides/matchings.md": ["certificate.relative_gap <= 0.01"],
    "docs/guides/own-structure.md": [
        "0.0 <= certificate.gap < 0.1 * certificate.primal",
        "check(head, LabelSet(), next(iter(in_order(train, batch_size=8)))).ok",
    ],
    "docs/guides/poses.md": [
        "bodies.steps == 8 and dual.steps == 160 and 0.0 <= certificate.gap < 0.8 * certificate.primal"
    ],
    "docs/guides/rankings.md": [
        "0.66 < float(printed.split('NDCG@5 ')[1].split()[0]) < 0.7",  # a gap of 1 % leaves the last two digits open
        "places.shape == test.y.shape",
    ],
    "docs/guides/segmentation.md": ["0.0 <= certificate.gap < 0.05"],
    "docs/guides/sequences.md": ["named_tags == [['PERSON', 'O', 'PLACE']] and certificate.relative_gap <= 0.01"],
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(page, tmp_path)
    names["printed"] = capsys.readouterr().out
    for claim in CLAIMS.get(page.relative_to(ROOT).as_posix(), ()):
        assert eval(claim, names), claim


def test_every_page_with_a_check_exists() -> None:
    assert {ROOT / name for name in CLAIMS} <= set(PAGES)


def test_no_block_is_missed() -> None:
    for page in PAGES:
        assert page.read_text().count("```python\n") == len(blocks(page)), f"{page} has a block that the pattern misses"


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100
    assert blocks(ROOT / "README.md")
