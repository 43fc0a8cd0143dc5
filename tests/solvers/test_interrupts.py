"""After an interrupt at any line a trainer goes on: what it was about to change has changed as a whole, or not."""

from __future__ import annotations

import signal

import pytest
import torch
from cases.compiled_kinds import label_sets, matchings, trees
from cases.interrupts import interrupted
from cases.kernel_problems import kernel_svm
from cases.problem_data import Items
from cases.problems import chain, multiclass

from torchssvm import (
    BCFW,
    GDMM,
    BlockGap,
    CacheOracle,
    Chain,
    CompiledBCFW,
    Corrective,
    DualState,
    HiddenStates,
    Labelings,
    LinearChain,
    MeanParts,
    Pairwise,
    Permutation,
    Relative,
    Solver,
    TorchLoop,
    Weights,
)
from torchssvm.core.interrupts import undisturbed
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers import LatentTrainer, WeightedAverage
from torchssvm.solvers.kernel import RBF
from torchssvm.steps import Away, Hybrid


def problem(**options):
    return chain(1, n=8, lam=0.3, **options)


def torch_loop(storage, direction=None, bounds=None, **rules):
    one = problem()
    dual = DualState.for_head(one.head, one.n, one.lam, storage=storage)
    bounded = [{"params": list(one.head.parameters()), **(bounds or {})}]
    loop = TorchLoop(
        one.head, BlockGap(dual, direction, **rules), Items(one), batch_size=3, seed=4, optimizer=BCFW(bounded, dual)
    )
    return loop, WeightedAverage.following(dual), one


def compiled(storage, direction=None, one=None, **rules):
    one = problem() if one is None else one
    dual = DualState.for_head(one.head, one.n, one.lam, storage=storage)
    loop = CompiledBCFW(one.head, dual, one.everything(3), seed=4, direction=direction, **rules)
    return loop, WeightedAverage.following(dual), one


LOOPS = {
    "mean parts": lambda: torch_loop(MeanParts()),
    "weights": lambda: torch_loop(Weights()),
    "bounds": lambda: torch_loop(MeanParts(), bounds={"lower": -0.2, "upper": 0.2}),
    "pairwise": lambda: torch_loop(Labelings(2), Pairwise(), oracle=CacheOracle()),
    "away": lambda: torch_loop(Labelings(2), Away()),
    "hybrid": lambda: torch_loop(Labelings(2), Hybrid(), oracle=CacheOracle()),
    "corrective": lambda: torch_loop(Labelings(2), Corrective(), oracle=CacheOracle()),
    "compiled": lambda: compiled(MeanParts(), order=Permutation()),
    "compiled, pairwise": lambda: compiled(Labelings(2), Pairwise(), oracle=CacheOracle()),
    "compiled, corrective": lambda: compiled(Labelings(2), Corrective(), oracle=CacheOracle()),
    "compiled, whole blocks": lambda: compiled(MeanParts(), Corrective(), multiclass(1, n=8, lam=0.3)),
    "compiled, trees": lambda: compiled(Labelings(2), Pairwise(), trees(), oracle=CacheOracle()),
    "compiled, label sets": lambda: compiled(Labelings(2), Corrective(), label_sets(), oracle=CacheOracle()),
    "compiled, matchings": lambda: compiled(MeanParts(), None, matchings()),
}


def begun(make, steps):
    """Trainers that have made some steps."""

    def made():
        loop, average, one = make()
        for _ in range(steps):
            loop.step()
        return loop, average, one

    return made


def step_and_certify(made):
    made[0].step()
    made[0].certify()


def go_on(made):
    loop = made[0]
    loop.dual.check_state(loop.dual.state_dict())
    loop.check_state(loop.state_dict())
    certificate = loop.certify()
    assert certificate.drift < 1e-3
    loop.step()
    assert loop.certify().dual >= certificate.dual - 1e-6


@pytest.mark.parametrize("name", LOOPS)
def test_loops_go_on(name):
    for steps in (0, 3):
        for made in interrupted(begun(LOOPS[name], steps), step_and_certify, times=2, seed=len(name) + steps):
            go_on(made)


OTHERS = {
    "GDMM": lambda one: GDMM(one.head, one.everything(3), num_examples=one.n, lam=one.lam, seed=4),
    "kernel": lambda one: kernel_svm(one, RBF(0.3), batch_size=3, seed=4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_trainers_go_on(name):
    best = OTHERS[name](problem(boundary=False)).solve(0.1, progress=False)

    def make():
        trainer = OTHERS[name](problem(boundary=False))
        trainer.step()
        return trainer

    for trainer in interrupted(make, lambda made: (made.certify(), made.step()), times=8):
        trainer.load_state_dict(trainer.state_dict())  # what is saved after an interrupt is whole
        trainer.step()
        certificate = trainer.certify()
        assert certificate.dual <= best.primal * (1 + 1e-6)
        assert certificate.primal >= best.dual * (1 - 1e-6)


def test_latent_rounds_go_on():
    random = torch.Generator().manual_seed(0)
    senses = torch.randint(4, (12, 3), generator=random)
    data = PaddedDataset(torch.eye(4)[senses] + 0.3 * torch.randn(12, 3, 4, generator=random), senses % 2)

    def make():
        structure = HiddenStates(Chain(4), [0, 0, 1, 1])
        run = LatentTrainer(
            LinearChain(4, 4), data, 1.0, structure=structure, solver=Solver(seed=1), tolerance=Relative(0.2)
        )
        run.step()
        return run

    for run in interrupted(make, lambda run: run.step(), times=2):
        before = list(run.objectives)
        run.step()
        assert run.objectives[: len(before)] == before
        assert run.objectives == sorted(run.objectives, reverse=True)


def test_signals_wait_for_the_end_of_the_outermost_block():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("signal"))
    try:
        with undisturbed():
            with undisturbed():
                signal.raise_signal(signal.SIGUSR1)
            seen.append("inside")
        assert seen == ["inside", "signal"]
        signal.raise_signal(signal.SIGUSR1)  # the handler is back
        assert seen == ["inside", "signal", "signal"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_comes_after_the_block():
    before, done = signal.signal(signal.SIGINT, signal.default_int_handler), []
    try:
        with pytest.raises(KeyboardInterrupt), undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append(True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True]
