"""Ways to train a network together with its head, from the same start and for equally many epochs of the network.

Tasks: OCR-large with a CNN on every letter, and chunking (CoNLL-2000, words alone) with a BiLSTM. For every seed the
network is pretrained token by token with cross-entropy; from there each side goes on for the same number of epochs,
with the same batches, Adam and a learning rate that falls linearly to 0:

- cross-entropy, on single tokens; and the chain solved on the features that this leaves;
- CRF: the likelihood of a chain, softmax-margin without a loss;
- hinge: the structured hinge;
- recipe: softmax-margin, then the chain solved on the frozen features (stopped at a certified gap of 1 % of the
  primal), and of both chains the one that is better on a held-out tenth of the training set.

Chains begin at the pretrained classifier's weights. CRF, hinge and recipe have lam/2 |w|^2 on the chain. Errors are the
shares of wrong tokens on the test set. All on one thread; CPU seconds include everything but reading and compiling.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from torchssvm import (
    Batch,
    CacheOracle,
    Chain,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    LinearChain,
    SoftmaxMargin,
    StructuredHinge,
    in_order,
)
from torchssvm.core.modules import apply_features
from torchssvm.datasets import OCR, CoNLL2000, PaddedDataset, PrecomputedFeatures
from torchssvm.models import LetterFeatures

from .measuring import Ask, Clock, Limit, Settings, Summary, Table, chosen, ratio

TITLE = "Joint training of network and chain"
SIDES = ("cross-entropy", "cross-entropy, chain solved", "CRF", "hinge", "recipe")
HELD_OUT = 10  # every so manieth training example
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided, by the number of seeds
OPTIONS: dict[str, Any] = {
    "tasks": ["ocr", "chunking"],
    "seeds": 3,
    "pretraining": {"ocr": 4, "chunking": 2},  # epochs
    "epochs": {"ocr": 4, "chunking": 2},
    "lam": {"ocr": 0.003, "chunking": 0.003},
    "lr": 1e-3,
    "head_lr": 1e-2,  # of chains
    "size": None,  # training examples; None is all
    "sides": list(SIDES),
}
QUICK = {"seeds": 2, "pretraining": {"ocr": 1, "chunking": 1}, "epochs": {"ocr": 1, "chunking": 1}, "size": 100}


class Task(NamedTuple):
    """Data, and a network of so many features for it."""

    train: PaddedDataset
    test: PaddedDataset
    num_states: int
    network: Callable[[], nn.Module]
    width: int


class TaggerFeatures(nn.Module):
    """Words ``[B, N]`` int64 -> features ``[B, N, 2 width]``: embeddings below a packed BiLSTM.

    Args:
        num_words: Numbers of words, 0 for padding.
        width: Features of each direction.
    """

    def __init__(self, num_words: int, width: int = 64, dropout: float = 0.3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Words and lengths -> features; zero in the padding."""
        inside = self.dropout(self.embedding(x))
        packed = pack_padded_sequence(inside, lengths.cpu(), batch_first=True, enforce_sorted=False)
        results, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.dropout(results)


def ocr() -> Task:
    """Handwritten words, large."""
    return Task(OCR("train", "large"), OCR("test", "large"), 26, LetterFeatures, LetterFeatures().width)


def chunking() -> Task:
    """Sentences as numbers of their words, in lower case; 1 is any word that occurs once in the training set."""
    train = CoNLL2000("train")
    test = CoNLL2000("test", vocabulary=train.vocabulary)
    counts: dict[str, int] = {}
    for word in train.sentences.words:
        counts[word.lower()] = counts.get(word.lower(), 0) + 1
    numbers = {word: at for at, word in enumerate((w for w, count in counts.items() if count > 1), 2)}

    def padded(data: Any) -> PaddedDataset:
        words = torch.tensor([numbers.get(word.lower(), 1) for word in data.sentences.words])
        lengths = data.lengths.tolist()
        x = pad_sequence(list(words.split(lengths)), batch_first=True)
        y = pad_sequence(list(data.states.split(lengths)), batch_first=True, padding_value=-1)
        return PaddedDataset(x, y, data.lengths)

    return Task(padded(train), padded(test), train.num_states, lambda: TaggerFeatures(len(numbers) + 2), 128)


TASKS = {"ocr": ocr, "chunking": chunking}


def part(data: PaddedDataset, rows: Tensor) -> PaddedDataset:
    """Some of the examples, numbered from 0."""
    assert data.lengths is not None
    return PaddedDataset(data.x[rows], data.y[rows], data.lengths[rows])


def batches_of(data: PaddedDataset, epochs: int, seed: int, size: int = 32) -> Iterator[tuple[float, Batch]]:
    """Batches of so many epochs, and for each the share of all that is still to come, from 1 down."""
    random = torch.Generator().manual_seed(seed)
    total = epochs * -(-len(data) // size)
    done = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=random).split(size):
            yield 1.0 - done / total, data.__getitems__(rows)
            done += 1


def descend(
    network: nn.Module,
    head: nn.Module,
    loss: Callable[[Batch, Tensor], Tensor],
    data: PaddedDataset,
    *,
    epochs: int,
    lr: float,
    seed: int,
    decay: bool = True,
    head_lr: float | None = None,
) -> None:
    """Adam on network and head, which may have another learning rate."""
    rates = [lr, lr if head_lr is None else head_lr]
    adam = torch.optim.Adam([{"params": part.parameters()} for part in (network, head)], lr=lr)
    network.train()
    torch.manual_seed(seed)  # of dropout
    for left, batch in batches_of(data, epochs, seed):
        for group, rate in zip(adam.param_groups, rates, strict=True):
            group["lr"] = rate * left if decay else rate
        adam.zero_grad()
        loss(batch, apply_features(network, batch.x, batch.lengths)).backward()
        adam.step()
    network.eval()


def solve_chain(head: LinearChain, data: PaddedDataset, lam: float) -> dict[str, float]:
    """Solve the head on features that are fixed, to a gap of 1 % of the primal."""
    dual = DualState.for_head(head, len(data), lam, storage=Labelings())
    loop = CompiledBCFW(head, dual, in_order(data), direction=Corrective(), oracle=CacheOracle())
    certificate = loop.solve(0.1, max_passes=100)
    while certificate.gap > 0.01 * certificate.primal and certificate.passes < 100:
        certificate = loop.solve(0.01 * certificate.primal, max_passes=100)
    return {"gap": certificate.gap, "primal": certificate.primal, "passes": certificate.passes}


@torch.no_grad()
def wrong_tokens(decode: Callable[[Batch], Tensor], data: PaddedDataset) -> list[int]:
    """Wrong tokens of each example."""
    results: list[int] = []
    for batch in in_order(data):
        results += ((decode(batch) != batch.y) & (batch.y >= 0)).sum(1).tolist()
    return results


def train(
    task: str,
    seed: int,
    sides: list[str],
    pretraining: int,
    epochs: int,
    lam: float,
    lr: float,
    head_lr: float,
    size: int | None,
) -> dict[str, Any]:
    """All sides from one pretrained network."""
    made = TASKS[task]()
    rows = torch.randperm(len(made.train), generator=torch.Generator().manual_seed(seed))[:size]
    chosen, kept = rows[::HELD_OUT], torch.cat([rows[k::HELD_OUT] for k in range(1, HELD_OUT)])
    data, validation = part(made.train, kept), part(made.train, chosen)
    torch.manual_seed(seed)
    network, classifier = made.network(), nn.Linear(made.width, made.num_states)
    free = Chain(made.num_states, class_weight=torch.zeros(made.num_states))
    results: dict[str, Any] = {"tokens": int(made.test.lengths.sum())}  # type: ignore[union-attr]

    def tokenwise(batch: Batch, features: Tensor) -> Tensor:
        return cross_entropy(classifier(features).transpose(1, 2), batch.y, ignore_index=-1)

    def chain() -> LinearChain:
        head = LinearChain(made.width, made.num_states, structure=Chain(made.num_states, normalize=False))
        with torch.no_grad():
            head.emission.copy_(start.weight)
            head.bias.copy_(start.bias)
        return head

    def error(head: nn.Module, features: nn.Module, on: PaddedDataset) -> list[int]:
        def decode(batch: Batch) -> Tensor:
            inside = apply_features(features, batch.x, batch.lengths)
            if isinstance(head, LinearChain):
                return head.structure.decode(head(inside, batch.lengths))
            return head(inside).argmax(2)

        return wrong_tokens(decode, on)

    clock = Clock()
    descend(network, classifier, tokenwise, data, epochs=pretraining, lr=2 * lr, seed=seed, decay=False)
    results["pretraining"] = clock.stop()["cpu_seconds"]
    start, pretrained = copy.deepcopy(classifier), network
    structure = chain().structure
    losses = {"CRF": SoftmaxMargin(free), "hinge": StructuredHinge(structure), "recipe": SoftmaxMargin(structure)}
    for side in ["cross-entropy", *losses]:
        if side not in sides:
            continue
        network, clock = copy.deepcopy(pretrained), Clock()
        options: dict[str, Any] = {"epochs": epochs, "lr": lr, "seed": seed + 1000}
        if side == "cross-entropy":
            classifier = copy.deepcopy(start)
            descend(network, classifier, tokenwise, data, **options)
            results[side] = {"wrong": error(classifier, network, made.test), **clock.stop()}
            if "cross-entropy, chain solved" not in sides:
                continue
            clock.go()
            solved = LinearChain(made.width, made.num_states, structure=structure)
            proof = solve_chain(solved, PrecomputedFeatures(data, network), lam)
            result = {**clock.stop(), **proof, "wrong": error(solved, network, made.test)}
            results["cross-entropy, chain solved"] = {**result, "held_out": sum(error(solved, network, validation))}
            continue
        head, loss = chain(), losses[side]

        def structured(batch: Batch, features: Tensor, head: Any = head, loss: Any = loss) -> Tensor:
            squares = sum(weight.square().sum() for weight in head.parameters())
            return loss(head(features, batch.lengths), batch.y) + lam / 2 * squares

        descend(network, head, structured, data, head_lr=head_lr, **options)
        result: dict[str, Any] = {"wrong": error(head, network, made.test), "cpu_seconds": clock.stop()["cpu_seconds"]}
        result["held_out"] = sum(error(head, network, validation))
        if side == "recipe":
            clock = Clock()
            solved = LinearChain(made.width, made.num_states, structure=head.structure)
            proof = solve_chain(solved, PrecomputedFeatures(data, network), lam)
            scores = [sum(error(each, network, validation)) for each in (head, solved)]
            result |= {**proof, "cpu_seconds": clock.stop()["cpu_seconds"] + result["cpu_seconds"]}
            result |= {"joint": result["wrong"], "solved": error(solved, network, made.test)}
            result |= {"wrong": result["joint" if scores[0] < scores[1] else "solved"], "held_out": scores}
        results[side] = result
    return results


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """All seeds of each task."""
    options = chosen(settings, OPTIONS, QUICK)
    by_task = {name: options.pop(name) for name in ("pretraining", "epochs", "lam")}
    tasks, seeds = options.pop("tasks"), options.pop("seeds")
    runs = {}
    for task in tasks:
        values_of = {name: values[task] for name, values in by_task.items()}
        runs[task] = [ask("train", task=task, seed=seed, **values_of, **options) for seed in range(seeds)]
    return {**options, **by_task, "runs": runs}


def interval(errors: list[float]) -> str:
    """Mean and half the 95 % interval of Student's t over the seeds, in per cent."""
    mean = statistics.mean(errors)
    if len(errors) not in T_95:
        return f"{100 * mean:.2f}"
    half = T_95[len(errors)] * statistics.stdev(errors) / len(errors) ** 0.5
    return f"{100 * mean:.2f} ± {100 * half:.2f}"


def difference(ours: list[list[int]], theirs: list[list[int]], tokens: int) -> str:
    """Ours less theirs in per cent, with the 95 % interval of a bootstrap over the test examples, seeds averaged."""
    each = (torch.tensor(ours, dtype=torch.float64) - torch.tensor(theirs, dtype=torch.float64)).mean(0)
    rows = torch.randint(len(each), (2000, len(each)), generator=torch.Generator().manual_seed(0))
    low, high = (100 * each[rows].sum(1) / tokens).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return f"{100 * float(each.sum()) / tokens:+.2f} ({low:+.2f} to {high:+.2f})"


def summarise(results: dict[str, Any]) -> Summary:
    """A table for each task, and the recipe's errors beside those of cross-entropy and the CRF."""
    tables, limits = [], []
    for task, runs in results["runs"].items():
        sides = [side for side in SIDES if side in runs[0]]
        tokens = runs[0]["tokens"]
        wrong = {side: [run[side]["wrong"] for run in runs] for side in sides}
        if "recipe" in sides:
            for name in ("joint", "solved"):
                wrong[f"recipe, the {name} chain"] = [run["recipe"][name] for run in runs]
        rows: list[list[Any]] = []
        for side, counts in wrong.items():
            errors = [sum(each) / tokens for each in counts]
            seconds = [run[side]["cpu_seconds"] for run in runs] if side in sides else None
            beside = None if "recipe" not in wrong or side == "recipe" else difference(wrong["recipe"], counts, tokens)
            shown = ", ".join(f"{100 * error:.2f}" for error in errors)
            rows.append([side, interval(errors), shown, beside, seconds and statistics.mean(seconds)])
        totals = {side: sum(map(sum, counts)) for side, counts in wrong.items()}
        for side in ("cross-entropy", "CRF"):
            name = f"{task}: errors of the recipe over those of {side}"
            limits.append(Limit(name, ratio(totals.get("recipe"), totals.get(side)), 1.0))
        spent = statistics.mean(run["pretraining"] for run in runs)
        title = (
            f"{task}: {results['pretraining'][task]} epochs of pretraining ({spent:.0f} CPU s), then "
            f"{results['epochs'][task]}; lam = {results['lam'][task]:g}; {len(runs)} seeds"
        )
        columns = ["", "test error, %", "seeds", "recipe less this, %", "CPU s after pretraining"]
        tables.append(Table(title, columns, rows))
    return Summary(tables, limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"train": train}
