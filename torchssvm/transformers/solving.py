"""Training and calibration of a tagger's head on features that the encoder computes once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import naming
from torchssvm.core.batch import in_order
from torchssvm.core.modules import evaluating
from torchssvm.datasets.padded import PADDING, PaddedDataset, padded
from torchssvm.path.choose_lam import LamChoice, choose_lam
from torchssvm.solvers.certificate import Certificate, write
from torchssvm.solvers.evaluation import fit_temperature
from torchssvm.solvers.training import solve
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.hidden_states.structure import HiddenStates
from torchssvm.transformers.batches import NO_WORD, batches_of, documents_of


class Solved(NamedTuple):
    """The result of :meth:`StructuredTagger.solve`; ``print`` shows it.

    Attributes:
        certificate: The primal, dual and gap of the new head.
        choice: Every lambda that was tried; None where it was given.
        before: The score of the old head on held-out examples: the F1 of spans, or the share of right words without
            a scheme. None without held-out examples.
        after: The score of the new head.
        kept: Whether the tagger has the new head: it does if the score is higher, or the old head was zero.

    Example:
        >>> tagger = StructuredTagger(StructuredTaggerConfig(encoder, labels, "BIO"))
        >>> items = tokenized(tokenizer, sentences, tags, labels)
        >>> solved = tagger.solve(items, items, lam=0.01, progress=False)
        >>> solved.after, solved.kept
        (1.0, True)
    """

    certificate: Certificate
    choice: LamChoice | None
    before: float | None
    after: float | None
    kept: bool

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.certificate}"
        kept = "the new head is kept" if self.kept else "the head from before is kept"
        scores = f"score of the held-out examples: {100 * self.before:.2f} % before, {100 * self.after:.2f} % now"
        return f"{self.certificate}\n{scores}: {kept}"


@torch.no_grad()
def features_of(tagger: Any, dataset: Any, batch_size: int) -> PaddedDataset:
    """The words of each text, with features on the CPU, which the tagger computes in evaluation mode."""
    items = [dataset[i] for i in range(len(dataset))]  # read once: a dataset may make them anew
    if not items or not all("labels" in item for item in items):
        raise ValueError("dataset must hold sentences with labels: a state for each word, and -100 elsewhere")
    x, y, documents = list[Tensor](), list[Tensor](), documents_of(items)
    order = sorted(range(len(items)), key=lambda place: len(items[place]["input_ids"]))  # batches with little padding
    with evaluating(tagger):
        pad = tagger.config.encoder.pad_token_id or 0
        for number, batch in enumerate(batches_of([items[i] for i in order], batch_size, pad, tagger.device)):
            with naming(torch.tensor(order[number * batch_size : (number + 1) * batch_size])):
                words = tagger.words(**batch)
            assert words.labels is not None
            for row, length in enumerate(words.lengths.tolist()):
                x.append(words.features[row, :length].float().cpu())
                y.append(words.labels[row, :length].cpu())
    back = torch.tensor(order).argsort().tolist()
    joined = [[torch.cat([parts[back[place]] for place in places]) for places in documents] for parts in (x, y)]
    lengths = torch.tensor([len(row) for row in joined[0]])
    return PaddedDataset(padded(joined[0], 0), padded(joined[1], PADDING), lengths)


def _labelled(tagger: Any, held_out: Any, batch_size: int) -> PaddedDataset:
    words = features_of(tagger, held_out, batch_size)
    if _unknown(words):
        raise ValueError("held_out has words without a label or with several: give one label for each word")
    return words


def _unknown(data: PaddedDataset) -> bool:
    """Whether words may have several labels."""
    return data.y.dtype == torch.bool or data.first_unknown is not None


def _scorer(tagger: Any, data: PaddedDataset) -> Callable[[Any], float]:
    """Return a function that scores heads by F1 of spans, or by accuracy where tags have no scheme."""
    labels = data.y.masked_fill(data.y == PADDING, NO_WORD)
    measure = "accuracy" if tagger.config.scheme is None else "f1"

    @torch.no_grad()
    def score(head: Any) -> float:
        tags = torch.full_like(labels, NO_WORD)
        for batch in in_order(data):
            states = head.structure.decode(head(batch.x, batch.lengths))
            tags[batch.index, : states.shape[1]] = states
        return float(tagger.compute_metrics(SimpleNamespace(predictions=tags, label_ids=labels))[measure])

    return score


def _is_zero(head: Any) -> bool:
    """Whether the head was never trained."""
    return not any(bool(p.any()) for p in head.parameters())


@torch.no_grad()
def _completed(head: Any, data: PaddedDataset) -> PaddedDataset:
    if _is_zero(head):
        raise ValueError("dataset has unknown labels, and the head is zero: train it first by transformers.Trainer")
    structure, rows = HiddenStates(head.structure), list[Tensor]()
    for batch in in_order(data):
        potentials = head(batch.x, batch.lengths)
        rows += structure.complete(potentials, structure.check_target(batch.y, potentials)).states
    return PaddedDataset(data.x, padded(rows, PADDING), data.lengths)


def solve_head(tagger: Any, dataset: Any, held_out: Any, lam: float | None, batch_size: int, **options: Any) -> Solved:
    """See :meth:`StructuredTagger.solve`."""
    if held_out is None and lam is None:
        raise ValueError("held_out and lam are None: give lam, or examples to choose it by")
    if not isinstance(tagger.head, LinearChain):
        raise TypeError(f"head is a {type(tagger.head).__name__}: call merge_and_unload(), and solve its tagger")
    train = features_of(tagger, dataset, batch_size)
    other = None if held_out is None else _labelled(tagger, held_out, batch_size)
    score = None if other is None else _scorer(tagger, other)
    head = copy.deepcopy(tagger.head).cpu()
    if _unknown(train):
        train = _completed(head, train)
    head.requires_grad_(True)
    head.reset_parameters()
    before = after = choice = None
    if lam is None:
        choice = choose_lam(head, train, other, score=score, patience=2, **options)
        certificate = choice.best.certificate
    else:
        certificate = solve(head, train, lam, **options)
    if score is not None:
        before = score(copy.deepcopy(tagger.head).cpu())
        after = score(head) if choice is None else choice.best.score
    kept = before is None or after is None or after > before or _is_zero(tagger.head)
    if kept:
        write(head.parameters(), tagger.head.parameters())
        tagger.config.probability_temperature = 1.0  # the old one was fitted to the old head
    return Solved(certificate, choice, before, after, kept)


@torch.no_grad()
def calibrate(tagger: Any, held_out: Any, batch_size: int) -> float:
    """See :meth:`StructuredTagger.calibrate`."""
    head = copy.deepcopy(tagger.head).cpu()
    batches = in_order(_labelled(tagger, held_out, batch_size))
    temperature = fit_temperature(head.structure, ((head(batch.x, batch.lengths), batch.y) for batch in batches))
    tagger.config.probability_temperature = temperature
    return temperature
