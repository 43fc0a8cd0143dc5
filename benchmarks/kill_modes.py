"""The trainings that ``kills.py`` kills: small ones, each as somebody would write it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    GDMM,
    BlockGap,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    FrankWolfe,
    GapBatchSampler,
    Labelings,
    LinearChain,
    MeanParts,
    Pairwise,
    Permutation,
    Proportional,
    Solver,
    Uniform,
    Weights,
    certify,
    load_checkpoint,
    save_checkpoint,
)
from torchssvm.datasets import OCR, PaddedDataset
from torchssvm.path import Certified, Heuristic, PathRun
from torchssvm.solvers import WeightedAverage
from torchssvm.solvers.gdmm import AwayStep, BlockGreedy, FullyCorrective
from torchssvm.solvers.kernel import RBF, KernelChain, KernelSSVM
from torchssvm.steps import Away, Hybrid, LargestGap, MaxOracle

Options = dict[str, Any]

_RULES = {
    "mean parts": (MeanParts, FrankWolfe, MaxOracle),
    "weights": (Weights, FrankWolfe, MaxOracle),
    "labelings": (lambda: Labelings(3), FrankWolfe, MaxOracle),
    "pairwise": (lambda: Labelings(3), Pairwise, CacheOracle),
    "away": (lambda: Labelings(4), Away, MaxOracle),
    "hybrid": (lambda: Labelings(4), Hybrid, CacheOracle),
    "corrective": (lambda: Labelings(3), Corrective, MaxOracle),
    "corrective with cache": (lambda: Labelings(3), Corrective, CacheOracle),
}
_COMPILED = [name for name in _RULES if name not in ("weights", "labelings")]
_ORDERS = {"gaps": Proportional, "largest": LargestGap, "uniform": Uniform, "permutation": Permutation}


class Report:
    """Tells the process that forked this one."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __call__(self, what: str, step: int) -> None:
        """``loaded`` or ``saved``, and the step; a line is written in one piece."""
        os.write(self.pipe, f"{what} {step}\n".encode("ascii"))


@dataclass(frozen=True)
class Mode:
    """A way to train.

    Attributes:
        choose: Draws the options of a run.
        train: Trains from the checkpoint in the folder, if there is one, to the end; gives all that must be equal.
            Its last argument says whether it saves.
    """

    choose: Callable[[random.Random], Options]
    train: Callable[[Options, Path, Report, bool], dict[str, Any]]


def words(n: int) -> PaddedDataset:
    """The first words of OCR."""
    ocr = OCR()
    return PaddedDataset(ocr.x[:n], ocr.y[:n], ocr.lengths[:n])


# -- A plain torch loop -------------------------------------------------------------------------------------


def choose_loop(choices: random.Random) -> Options:
    """Storages, rules, orders; how the loop is written, and where it saves and certifies."""
    return {
        "rules": choices.choice(list(_RULES)),
        "order": choices.choice(list(_ORDERS)),
        "batch_size": choices.choice([3, 4]),
        "workers": choices.choice([0, 0, 0, 2]),
        "certify_at": choices.choice(["end of every epoch", "end of every second epoch", "every fourth step"]),
        "counts": choices.choice(["the sampler", "the loop"]),
        "save_every": choices.choice([1, 2, 3, 5]),
        "save_at_ends": choices.choice([False, True]),
        "accumulate": choices.choice([1, 1, 2]),
    }


def train_loop(options: Options, folder: Path, report: Report, saves: bool) -> dict[str, Any]:
    """BCFW on a head, an average, and beside it a small network with dropout on inputs drawn at random."""
    torch.manual_seed(0)
    train, path, epochs = words(20), folder / "run.pt", 4
    storage, direction, oracle = (make() for make in _RULES[options["rules"]])
    head = LinearChain(128, 26)
    dual = DualState.for_head(head, len(train), 0.01, storage=storage)
    loss, optim = BlockGap(dual, direction, oracle=oracle), BCFW(head.parameters(), dual)
    order = _ORDERS[options["order"]]()
    sampler = GapBatchSampler(dual, batch_size=options["batch_size"], order=order, seed=1, chunk=4)
    average = WeightedAverage.following(dual)
    network = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 1))
    adam = torch.optim.Adam(network.parameters())
    loader = DataLoader(train, batch_sampler=sampler, collate_fn=train.collate, num_workers=options["workers"])
    everything = DataLoader(train, batch_size=8, collate_fn=train.collate, generator=torch.Generator())
    kept = {"average": average, "optim": optim, "sampler": sampler, "network": network, "adam": adam}
    certificates: list[list[float]] = []
    start = step = 0
    if path.exists():
        values = load_checkpoint(path, **kept)
        start, step, certificates = values["epoch"], values["step"], values["certificates"]
        if options["counts"] == "the sampler":
            start = sampler.epoch
    report("loaded", step)

    def save(epoch: int) -> None:
        if saves:
            save_checkpoint(path, **kept, epoch=epoch, step=step, certificates=certificates)
            report("saved", step)

    def check() -> None:
        results = certify(head, dual, everything)
        certificates.append([results.primal, results.dual, results.gap, results.drift, float(results.oracle_calls)])

    for epoch in range(start, epochs):
        pending = 0
        for batch in loader:
            if not pending:
                optim.zero_grad()
            loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
            pending += 1
            if pending < options["accumulate"]:
                continue
            pending = 0
            optim.step()
            adam.zero_grad()
            network(torch.randn(5, 4)).square().mean().backward()
            adam.step()
            step += 1
            if options["certify_at"] == "every fourth step" and step % 4 == 0:
                check()
            if step % options["save_every"] == 0:
                save(epoch)
        optim.zero_grad()
        if options["certify_at"] == "end of every epoch" or (
            options["certify_at"] == "end of every second epoch" and epoch % 2
        ):
            check()
        if options["save_at_ends"]:
            save(epoch + 1)
    return {
        "states": {name: value.state_dict() for name, value in kept.items()},
        "certificates": certificates,
        "step": step,
        "random": torch.get_rng_state(),
    }


# -- The compiled loop --------------------------------------------------------------------------------------


def choose_compiled(choices: random.Random) -> Options:
    """Rules, orders, and how many visits come between two saves."""
    return {
        "rules": choices.choice(_COMPILED),
        "order": choices.choice(["gaps", "uniform", "permutation"]),
        "visits": choices.choice([7, 13, 20]),
        "certify_every": choices.choice([2, 3, 5]),
    }


def train_compiled(options: Options, folder: Path, report: Report, saves: bool) -> dict[str, Any]:
    """``CompiledBCFW`` in portions."""
    train, path = words(20), folder / "run.pt"
    storage, direction, oracle = (make() for make in _RULES[options["rules"]])
    head = LinearChain(128, 26)
    dual = DualState.for_head(head, len(train), 0.01, storage=storage)
    everything = DataLoader(train, batch_size=8, collate_fn=train.collate)
    loop = CompiledBCFW(
        head, dual, everything, direction=direction, oracle=oracle, order=_ORDERS[options["order"]](), seed=1
    )
    portion = 0
    if path.exists():
        portion = load_checkpoint(path, dual=dual, loop=loop)["portion"]
    report("loaded", portion)
    while portion < 24:
        loop.step(options["visits"])
        portion += 1
        if portion % options["certify_every"] == 0:
            loop.certify()
        if saves:
            save_checkpoint(path, dual=dual, loop=loop, portion=portion)
            report("saved", portion)
    return {"dual": dual.state_dict(), "loop": loop.state_dict()}


# -- GDMM ---------------------------------------------------------------------------------------------------


def choose_gdmm(choices: random.Random) -> Options:
    """Rules, and whether passes are made in portions."""
    return {
        "rule": choices.choice(["corrective", "away", "greedy"]),
        "portions": choices.choice([False, True]),
        "save_every": choices.choice([1, 3]),
        "certify_every": choices.choice([2, 4]),
    }


def train_gdmm(options: Options, folder: Path, report: Report, saves: bool) -> dict[str, Any]:
    """``GDMM`` on chains, saved after passes, or after portions of a pass."""
    train, path = words(20), folder / "run.pt"
    head = LinearChain(128, 26)
    rule = {"corrective": FullyCorrective, "away": AwayStep, "greedy": BlockGreedy}[options["rule"]]()
    everything = DataLoader(train, batch_size=8, collate_fn=train.collate)
    optim = GDMM(head, everything, num_examples=len(train), lam=0.01, rule=rule, seed=2)
    step = 0
    if path.exists():
        step = load_checkpoint(path, optim=optim)["step"]
    report("loaded", step)
    while step < 25:  # the last step completes a pass: only then does the head hold the weights of the duals
        if options["portions"] and step % 3:
            optim.visit(torch.arange(len(train))[step % 3 :: 3])
        else:
            optim.step()
            if step // 3 % options["certify_every"] == 0:
                optim.certify()
        step += 1
        if saves and step % options["save_every"] == 0:
            save_checkpoint(path, optim=optim, step=step)
            report("saved", step)
    return {"optim": optim.state_dict(), "head": head.state_dict()}


# -- Kernels ------------------------------------------------------------------------------------------------


def choose_kernel(choices: random.Random) -> Options:
    """Directions and orders."""
    return {
        "order": choices.choice(list(_ORDERS)),
        "save_every": choices.choice([1, 3]),
        "certify_every": choices.choice([1, 2]),
    }


def train_kernel(options: Options, folder: Path, report: Report, saves: bool) -> dict[str, Any]:
    """``KernelSSVM``, which draws its batches itself; an exact pass at the end of an epoch of seven."""
    train, path = words(20), folder / "run.pt"
    head = KernelChain(RBF(0.02), 128, 26)
    order = _ORDERS[options["order"]]()
    svm = KernelSSVM(head, train.x, train.y, train.lengths, lam=0.05, batch_size=3, order=order, seed=3)
    step = 0
    if path.exists():
        step = load_checkpoint(path, svm=svm)["step"]
    report("loaded", step)
    while step < 28:
        svm.step()
        step += 1
        if step % (7 * options["certify_every"]) == 0:
            svm.certify()
        if saves and step % options["save_every"] == 0:
            save_checkpoint(path, svm=svm, step=step)
            report("saved", step)
    return {"svm": svm.state_dict(), "step": step}


# -- Regularisation paths -----------------------------------------------------------------------------------


def choose_path(choices: random.Random) -> Options:
    """Rules and storages. A path is saved at its breakpoints: between them a run begins again at the last one."""
    return {
        "rule": choices.choice(["certified", "heuristic"]),
        "rules": choices.choice(["mean parts", "weights", "pairwise", "corrective with cache"]),
    }


def train_path(options: Options, folder: Path, report: Report, saves: bool) -> dict[str, Any]:
    """``PathRun``, saved at every breakpoint."""
    train, path = words(12), folder / "run.pt"
    storage, direction, oracle = _RULES[options["rules"]]
    head = LinearChain(128, 26)
    run = PathRun(
        head,
        train,
        epsilon=0.35,
        lam_min=0.05,
        rule=Certified() if options["rule"] == "certified" else Heuristic(),
        max_passes=400,
        solver=Solver(direction(), oracle(), storage(), compiled=False, batch_size=4),
    )
    points = 0
    if path.exists():
        points = load_checkpoint(path, run=run)["points"]
    report("loaded", points)
    while run.advance():
        points += 1
        if saves:
            save_checkpoint(path, run=run, points=points)
            report("saved", points)
    state = run.state_dict()
    del state["path"]["columns"]["seconds"], state["path"]["seal"]
    return state


MODES: dict[str, Mode] = {
    "loop": Mode(choose_loop, train_loop),
    "compiled": Mode(choose_compiled, train_compiled),
    "gdmm": Mode(choose_gdmm, train_gdmm),
    "kernel": Mode(choose_kernel, train_kernel),
    "path": Mode(choose_path, train_path),
}
