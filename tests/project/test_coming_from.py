"""The code on the pages for users of other packages runs, on both sides."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGES = Path(__file__).parents[2] / "docs/coming-from"
NEEDS = {  # the peers and extras of each page; its blocks run where all are installed
    "crf-layers": ["torchcrf", "torch_struct"],
    "linearsvc": ["sklearn"],
    "sklearn-crfsuite": ["sklearn", "sklearn_crfsuite"],
    "pystruct": ["sklearn"],
    "dlib": [],
    "pyepo": ["sklearn"],
    "transformers": ["transformers", "accelerate", "all_minilm_l6_v2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(NEEDS))
@pytest.mark.filterwarnings("ignore")  # of the peers
def test_both_sides_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS[page]:
        pytest.importorskip(package)
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if page == "transformers":  # transformers takes any folder of this name for the package
        import transformers.trainer

        monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        try:
            exec(compile(block, f"{page}.md", "exec"), names)
        except FileNotFoundError as missing:  # a file of words that no package holds
            if page != "transformers":
                raise
            pytest.skip(str(missing))
    CLAIMS[page](names)


def test_every_page_is_run() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} - {"index"} == set(NEEDS) == set(CLAIMS)


def crf_layers(names: dict) -> None:
    assert len(names["their_letters"]) == len(names["few"].x)
    assert names["certificate"].relative_gap <= 0.01
    assert names["errors"] < 0.22
    lengths = names["few"].lengths
    for ours, theirs, length in zip(names["our_letters"], names["theirs"], lengths, strict=True):
        assert ours[:length].tolist() == theirs[:length].tolist()
    assert names["proof"].relative_gap <= 0.01


def linearsvc(names: dict) -> None:
    assert min(names["their_score"], names["our_score"], names["plain_score"]) > 0.95
    assert names["certificate"].relative_gap <= 0.01
    theirs = names["theirs"]
    scores = theirs.decision_function(names["X_train"])
    own = scores[range(len(scores)), names["y_train"]]
    scores += 1.0
    scores[range(len(scores)), names["y_train"]] -= 1.0
    squares = (theirs.coef_**2).sum() + (theirs.intercept_**2).sum()
    objective = (0.5 * squares + (scores.max(1) - own).sum()) / len(scores)
    assert names["certificate"].dual <= objective + 1e-6  # the same problem: no weights are below the bound
    assert names["certificate"].primal <= 1.02 * objective


def crfsuite(names: dict) -> None:
    assert [list(tags) for tags in names["their_tags"]] == names["y"]
    assert [list(tags) for tags in names["our_tags"]] == names["y"]
    assert names["ours"].certificate_.relative_gap <= 0.01


def pystruct(names: dict) -> None:
    assert names["certificate"].relative_gap <= 0.01
    assert names["error"] < names["alone"]
    assert names["graph_score"] > names["nodes_alone"]
    assert names["graphs"].certificate_.relative_gap <= 0.01


def dlib(names: dict) -> None:
    assert names["certificate"].relative_gap <= 0.01
    assert names["wrong"] == 0


def pyepo(names: dict) -> None:
    model, x, c, train, test = (names[name] for name in ("model", "x", "c", "train", "test"))
    assert model.certificate_.relative_gap <= 0.01
    x = np.c_[x, np.ones(len(x))]
    predicted = x[test] @ np.linalg.lstsq(x[train], c[train], rcond=None)[0]
    costs = [(model.structure_.oracle.solve(each)[0] * c[test]).sum() for each in (predicted, c[test])]
    assert names["regret"] < costs[0] / costs[1] - 1  # that of least squares
    assert names["own"].certificate_.relative_gap <= 0.01


def transformers(names: dict) -> None:
    assert names["solved"].kept
    assert names["solved"].after > 0.8
    assert names["solved"].certificate.relative_gap <= 0.01
    assert [span.label for span in names["spans"]][:3] == ["NP", "VP", "NP"]
    assert names["best"].labelings.shape[:2] == (8, 5)


CLAIMS = {
    "crf-layers": crf_layers,
    "linearsvc": linearsvc,
    "sklearn-crfsuite": crfsuite,
    "pystruct": pystruct,
    "dlib": dlib,
    "pyepo": pyepo,
    "transformers": transformers,
}
