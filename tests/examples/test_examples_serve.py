"""The tagger that is trained, saved, loaded and served, on a small corpus."""

import random
import re
from pathlib import Path

import pytest
import torch
from cases.chunking_problems import write

from torchssvm.datasets import CoNLL2000
from torchssvm.datasets.text import conll2000
from torchssvm.datasets.text.conll2000 import SPLITS
from torchssvm.deployment import batch_of_names, load_model

pytestmark = pytest.mark.slow

pytest.importorskip("safetensors")

ROOT = Path(__file__).parents[2]
PHRASES = [("NP", ["the", "cat"]), ("VP", ["sat"]), ("PP", ["on"]), ("NP", ["a", "mat"])]


def corpus(sentences: int, seed: int) -> str:
    chance, text = random.Random(seed), []
    for _ in range(sentences):
        for kind, words in chance.choices(PHRASES, k=4):
            text += [f"{word} XX {'I' if place else 'B'}-{kind}" for place, word in enumerate(words)]
        text.append(". . O\n")
    return "\n".join(text) + "\n"


def test_train_save_load_and_tag(run_script, monkeypatch, tmp_path):
    files = {split: write(tmp_path, corpus(40, seed), name=split) for seed, split in enumerate(SPLITS)}
    monkeypatch.setattr(conll2000, "fetch", lambda path, *_: files[Path(path).name.partition(".")[0]])
    path = tmp_path / "served" / "chunks.safetensors"
    out = run_script(ROOT / "examples" / "serve.py", "--path", path, "--sentences", 30)
    assert float(re.search(r"([\d.]+) % of the tags are right", out)[1]) > 95.0
    assert re.search(r"[\d,]+ words a second;", out)
    assert "./O" in out
    model = load_model(path)
    assert model.labels == list(CoNLL2000.chunk_tags)
    assert max(model.vocabulary.values()) == model.head.in_features - 1


def test_a_batch_of_names():
    vocabulary = {"a": 0, "b": 1, "c": 2}
    x, lengths = batch_of_names([[["a", "b"], ["new"]], [["c"]]], vocabulary)
    assert x.values is None
    assert x.columns.tolist() == [[[0, 1], [-1, -1]], [[2, -1], [-1, -1]]]
    assert lengths.tolist() == [2, 1]
    x, _ = batch_of_names([[{"a": 0.5, "new": 3.0}, ["b"]]], vocabulary)
    assert torch.equal(x.dense(3), torch.tensor([[[0.5, 0, 0], [0, 1, 0]]]))
