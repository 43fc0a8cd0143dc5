"""The model card of a saved tagger."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("transformers")
from huggingface_hub import ModelCard

from torchssvm.transformers import StructuredTagger

LAST = re.compile("<!-- torchssvm wrote this page.* -->\n$")


def card(folder) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def certified(text: str) -> bool:
    return "| λ | primal | dual | gap |" in text


def test_the_card_is_parsed_and_names_labels_and_scheme(tagger, tmp_path):
    tagger.save_pretrained(tmp_path)
    read = ModelCard.load(tmp_path / "README.md")
    assert read.data.library_name == "torchssvm"
    assert read.data.pipeline_tag == "token-classification"
    assert read.data.tags == ["torchssvm", "structured-prediction"]
    assert read.data.eval_results is None
    assert "\n- Scheme: BIO; other sequences are never predicted.\n" in read.text
    assert "\n      O, B-X, I-X, B-Y, I-Y\n" in read.text
    assert not certified(read.text)
    assert "None: the head was not trained by `solve`" in read.text
    assert LAST.search(read.content)


def test_a_solve_writes_its_certificate_and_a_later_one_replaces_it(tagger, items, tmp_path):
    tagger.save_pretrained(tmp_path)
    solved = tagger.solve(items[:16], items[16:], lam=0.01, progress=False)
    assert solved.kept
    tagger.save_pretrained(tmp_path)
    proof = solved.certificate
    assert f"| 0.01 | {proof.primal:.6g} | {proof.dual:.6g} | {proof.gap:.6g} |" in card(tmp_path)
    assert "features of 16 sentences" in card(tmp_path)
    assert f"The F1 of spans was {100 * solved.after:.2f} % on {len(items) - 16} held-out sentences" in card(tmp_path)
    again = tagger.solve(items[:4], lam=1.0, progress=False)
    tagger.save_pretrained(tmp_path)
    assert f"| 1 | {again.certificate.primal:.6g} |" in card(tmp_path)
    assert "held-out" not in card(tmp_path)
    assert not tagger.solve(items[:16], items[16:], lam=0.01, progress=False).kept  # as good as the head from before
    worse = tagger.solve(items[:16], lam=0.01, progress=False)
    assert worse.kept
    refused = tagger.solve(items[:2], items[16:], lam=1e3, progress=False)
    assert not refused.kept
    tagger.save_pretrained(tmp_path)
    assert f"| 0.01 | {worse.certificate.primal:.6g} |" in card(tmp_path)


def test_a_loaded_tagger_keeps_the_certificate_until_its_weights_change(tagger, items, tmp_path):
    tagger.solve(items[:16], lam=0.1, progress=False)
    tagger.save_pretrained(tmp_path)
    loaded = StructuredTagger.from_pretrained(tmp_path)
    loaded.save_pretrained(tmp_path / "again")
    assert card(tmp_path / "again") == card(tmp_path)
    assert certified(card(tmp_path))
    with torch.no_grad():
        next(loaded.encoder.parameters()).add_(0.1)
    loaded.save_pretrained(tmp_path / "again")
    assert not certified(card(tmp_path / "again"))


def test_without_a_scheme_words_are_counted(classifier, items, tmp_path):
    tagger = StructuredTagger.from_classifier(classifier, scheme=None)
    solved = tagger.solve(items[:16], items[16:], lam=0.01, progress=False)
    tagger.save_pretrained(tmp_path)
    assert "Scheme: none." in card(tmp_path)
    assert f"The share of right words was {100 * solved.after:.2f} %" in card(tmp_path)


@pytest.mark.parametrize("edit", ["theirs", "ours with a word", "ours without its last line", "not in UTF-8"])
def test_a_page_that_somebody_wrote_or_edited_stays(tagger, items, tmp_path, edit):
    page = tmp_path / "README.md"
    tagger.save_pretrained(tmp_path)
    ours = page.read_bytes()
    edited = {
        "theirs": b"# My tagger\n",
        "ours with a word": ours.replace(b"# A structured tagger", b"# My structured tagger"),
        "ours without its last line": LAST.sub("", ours.decode()).encode(),
        "not in UTF-8": b"\xff\xfe",
    }[edit]
    assert edited != ours
    page.write_bytes(edited)
    tagger.solve(items[:4], lam=1.0, progress=False)
    tagger.save_pretrained(tmp_path)
    assert page.read_bytes() == edited
    StructuredTagger.from_pretrained(tmp_path)


def test_only_the_main_process_writes_it(tagger, tmp_path):
    tagger.save_pretrained(tmp_path, False)
    assert not (tmp_path / "README.md").exists()
