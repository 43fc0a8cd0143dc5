"""Whatever a user holds can be copied and pickled, in the middle of a run, and then computes the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.kernel_problems import kernel_svm
from cases.problems import assert_same, chain, multiclass

from torchssvm import (
    GDMM,
    GapBatchSampler,
    HiddenStates,
    Labelings,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    MeanParts,
    Relative,
    Solver,
    Weights,
    in_order,
    make_trainer,
    regularization_path,
)
from torchssvm.datasets import PaddedDataset
from torchssvm.deployment import Decoder
from torchssvm.path import PathRun
from torchssvm.solvers import LatentTrainer, WeightedAverage
from torchssvm.solvers.kernel import RBF
from torchssvm.structures import Chain

WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
}
DRAW = torch.Generator().manual_seed(0)
WORDS = PaddedDataset(torch.randn(12, 5, 4, generator=DRAW), torch.randint(0, 3, (12, 5), generator=DRAW))
POINTS = PaddedDataset(torch.randn(12, 4, generator=DRAW), torch.randint(0, 3, (12,), generator=DRAW))
SETS = PaddedDataset(torch.randn(12, 4, generator=DRAW), torch.randint(0, 2, (12, 3), generator=DRAW))


def trainer(**solver: Any) -> Any:
    return make_trainer(LinearChain(4, 3), WORDS, 0.1, solver=Solver(**solver), progress=False)


def latent() -> LatentTrainer:
    structure = HiddenStates(Chain(4), [0, 0, 1, 1])
    data = PaddedDataset(WORDS.x, WORDS.y.clamp(max=1))
    return LatentTrainer(
        LinearChain(4, 4), data, 1.0, structure=structure, tolerance=Relative(0.5), solver=Solver(seed=1)
    )


TRAINERS = {
    "compiled": lambda: trainer(compiled=True),
    "torch": lambda: trainer(compiled=False),
    "mean parts": lambda: trainer(compiled=False, storage=MeanParts()),
    "labelings": lambda: trainer(compiled=False, storage=Labelings()),
    "weights": lambda: trainer(compiled=False, storage=Weights()),
    "gdmm of chains": lambda: GDMM(LinearChain(4, 3), in_order(WORDS), num_examples=12, lam=0.1),
    "gdmm of label sets": lambda: GDMM(LinearMultilabel(4, 3), in_order(SETS), num_examples=12, lam=0.1),
    "kernel": lambda: kernel_svm(chain(4), RBF(0.3)),
    "latent": latent,
    "path": lambda: PathRun(LinearMulticlass(4, 3), POINTS, epsilon=0.5, lam_min=0.05),
}


def go_on(run: Any) -> None:
    run.advance() if isinstance(run, PathRun) else run.step()


def state_of(run: Any) -> Any:
    state = copy.deepcopy(run.state_dict())
    if isinstance(run, PathRun) and state["path"] is not None:  # wall-clock seconds
        del state["path"]["columns"]["seconds"], state["path"]["seal"]
    return state


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", TRAINERS)
def test_trainers_go_on_alike_and_apart(make, way):
    run = TRAINERS[make]()
    go_on(run)
    twin = WAYS[way](run)
    before = state_of(twin)
    go_on(run)
    assert_same(state_of(twin), before)
    go_on(twin)
    assert_same(state_of(twin), state_of(run))


def loop() -> Any:
    training = chain(1).train(storage=Labelings())
    return training, GapBatchSampler(training.dual, batch_size=2, seed=1), WeightedAverage.following(training.dual)


def one_epoch(parts: Any) -> Any:
    training, sampler, average = parts
    for rows in sampler:
        training.step(rows)
    return training.optim.state_dict(), average.state_dict(), sampler.state_dict()


OTHERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a user's loop": (loop, one_epoch),
    "decoder": (lambda: Decoder(multiclass(0).head), lambda decoder: decoder(multiclass(0).x)),
    "potentials": (lambda: LinearChain(4, 3)(WORDS.x, WORDS.lengths), Chain(3).decode),
    "regularization path": (
        lambda: regularization_path(LinearMulticlass(4, 3), POINTS, epsilon=Relative(0.5), lam_min=0.1, progress=False),
        lambda path: path.state_dict(),
    ),
    "rules": (lambda: Solver(compiled=False), repr),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", OTHERS)
def test_the_others_compute_the_same(kind, way):
    make, use = OTHERS[kind]
    thing = make()
    twin = WAYS[way](thing)
    assert_same(use(twin), use(thing))
