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
    names |= {"objective_of_linearsvc": objective_of_linearsvc, "regret_of_least_squares": regret_of_least_squares}
    for claim in CLAIMS[page]:
        assert eval(claim, names), claim


def test_every_page_is_run() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} - {"index"} == set(NEEDS) == set(CLAIMS)


def objective_of_linearsvc(names: dict) -> float:
    theirs, rows = names["theirs"], range(len(names["y_train"]))
    scores = theirs.decision_function(names["X_train"])
    true = scores[rows, names["y_train"]]
    scores += 1.0
    scores[rows, names["y_train"]] -= 1.0
    squares = (theirs.coef_**2).sum() + (theirs.intercept_**2).sum()
    return (0.5 * squares + (scores.max(1) - true).sum()) / len(scores)


def regret_of_least_squares(names: dict) -> float:
    model, x, c, train, test = (names[name] for name in ("model", "x", "c", "train", "test"))
    x = np.c_[x, np.ones(len(x))]
    predicted = x[test] @ np.linalg.lstsq(x[train], c[train], rcond=None)[0]
    costs = [(model.structure_.oracle.solve(each)[0] * c[test]).sum() for each in (predicted, c[test])]
    return costs[0] / costs[1] - 1


# What the names that a page leaves behind must show.
CLAIMS = {
    "crf-layers": [
        "len(their_letters) == len(few.x) and errors < 0.22",
        "certificate.relative_gap <= 0.01 and proof.relative_gap <= 0.01",
        "all(list(a[:n]) == list(b[:n]) for a, b, n in zip(our_letters, theirs, few.lengths, strict=True))",
    ],
    "linearsvc": [
        "min(their_score, our_score, plain_score) > 0.95 and certificate.relative_gap <= 0.01",
        "certificate.dual <= objective_of_linearsvc(globals()) + 1e-6",  # no weights are below the bound
        "certificate.primal <= 1.02 * objective_of_linearsvc(globals())",
    ],
    "sklearn-crfsuite": [
        "[list(tags) for tags in their_tags] == [list(tags) for tags in our_tags] == y",
        "ours.certificate_.relative_gap <= 0.01",
    ],
    "pystruct": [
        "certificate.relative_gap <= 0.01 and error < alone and graph_score > nodes_alone",
        "graphs.certificate_.relative_gap <= 0.01",
    ],
    "dlib": ["certificate.relative_gap <= 0.01 and wrong == 0"],
    "pyepo": [
        "model.certificate_.relative_gap <= 0.01 and cheapest.certificate_.relative_gap <= 0.01",
        "regret < regret_of_least_squares(globals())",
    ],
    "transformers": [
        "solved.kept and solved.after > 0.8 and solved.certificate.relative_gap <= 0.01",
        "[span.label for span in spans][:3] == ['NP', 'VP', 'NP'] and best.labelings.shape[:2] == (8, 5)",
        "windows[1]['window'] == [1, 7] and tags_of_text[:4] == ['B-NP', 'B-VP', 'B-NP', 'I-NP']",
    ],
}
