"""Training without some examples, and scoring them: once, or fold by fold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from torchssvm.core.arguments import as_number
from torchssvm.core.batch import NAMES, Part, check_fits, pass_over
from torchssvm.core.structure import Structure
from torchssvm.path.lam_choice import HeldOutPoint
from torchssvm.path.walk import Solved
from torchssvm.solvers.evaluation import evaluate, merge_evaluations
from torchssvm.solvers.training import on_device


class Run(NamedTuple):
    """The training of one fold, or the only one."""

    head: nn.Module
    trainer: Any
    batches: Any  # of its held-out examples
    scale: float  # of lambda: lam n is that of all examples


def scored(
    runs: list[Run],
    solved: list[Solved],
    structure: Structure,
    score: Callable[[nn.Module], float] | None,
    device: torch.device,
) -> HeldOutPoint:
    """What every run has reached at a lambda, and how well it predicts what it holds out."""
    found, values, lam = [], [], solved[0].lam
    for run in runs:
        with on_device(run.head, device):
            found.append(evaluate(run.head, structure, run.batches, device))
            value = -found[-1].loss if score is None else _score(run.head, score)
        value = float(run.trainer.dual.ranks.gather(torch.tensor(value, dtype=torch.float64))[0])  # all follow one
        if math.isnan(value):
            raise ValueError(f"score(head) is nan at lam={lam:g}: it must be a number, the larger the better")
        values.append(value)
    held = found[0] if len(found) == 1 else merge_evaluations(found)
    if score is None:
        mean, losses = -held.loss, held.losses
    else:
        mean, losses = sum(values) / len(values), -torch.tensor(values, dtype=torch.float64)
    passes, seconds = (sum(getattr(each, name) for each in solved) for name in ("passes", "seconds"))
    return HeldOutPoint(lam, solved[-1].result, held, mean, passes, seconds, losses)


@torch.no_grad()
def _score(head: nn.Module, score: Callable[[nn.Module], float]) -> float:
    """What ``score`` says; if it has changed the weights, they are put back, and an error says so."""
    held = [parameter.detach().clone() for parameter in head.parameters()]
    try:
        with torch.enable_grad():
            given: Any = score(head)
            one = isinstance(given, torch.Tensor) and given.numel() == 1
            found = as_number(float(given) if one else given, "score(head)")
    finally:
        changed = [(p, own) for p, own in zip(head.parameters(), held, strict=True) if not torch.equal(p, own)]
        for parameter, own in changed:
            parameter.copy_(own)
    if changed:
        raise ValueError("score(head) has changed the head's weights: score a copy, copy.deepcopy(head)")
    return found


def divided(dataset: Any, folds: int, seed: int) -> list[tuple[Part, Any]]:
    """For every fold, the examples beyond it and the batches of its own."""
    n = len(dataset)
    if folds > n:
        raise ValueError(f"folds={folds} and there are {n} examples: each fold needs one")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    sets = []
    for own in torch.tensor_split(order, folds):
        rest = torch.ones(n, dtype=torch.bool)
        rest[own] = False
        held_out = Part(dataset, own.sort().values)
        sets.append((Part(dataset, rest.nonzero().flatten()), pass_over(held_out)))
    return sets


def held_out_batches(head: nn.Module, dataset: Any, held_out: Any, structure: Structure, device: Any) -> Any:
    """The batches of the held-out examples; the first is decoded, to refuse what does not fit: see ``choose_lam``."""
    if not hasattr(held_out, "__len__"):
        raise TypeError(f"held_out must be a map-style dataset with a length, not a {type(held_out).__name__}")
    if held_out is dataset:
        raise ValueError("held_out is the training set itself: give examples that are not trained on")
    if not len(held_out):
        raise ValueError("held_out is empty: give examples that are not trained on")
    batches = pass_over(held_out)
    check_fits(head, structure, held_out)
    for name in NAMES if hasattr(dataset, "vocabulary") and hasattr(held_out, "vocabulary") else ():
        own, other = getattr(dataset, name, None), getattr(held_out, name, None)
        compares: Any = type(own).__eq__
        if compares is not object.__eq__ and own != other:
            raise ValueError(f"held_out has another {name} than dataset: make it with {name}=train.{name}")
    evaluate(head, structure, itertools.islice(batches, 1), device)
    return batches
