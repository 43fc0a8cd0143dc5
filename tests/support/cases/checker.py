"""The independent checker: what a run of the package claims, beside all outputs listed and the optimum by a QP solver.

``check(kind, seed)`` makes a random problem of a kind, trains it by random rules, and returns what was claimed wrongly.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases.listed_costs import decisions, matchings, rankings
from cases.listed_problems import (
    Listed,
    arcs,
    chains,
    classes,
    graphs,
    label_sets,
    labelled_arcs,
    rescaled,
    segments,
    trees,
)
from cases.optima import Bounds, enclose
from cases.problems import Reference
from cases.processes import in_processes
from torchssvm import (
    CacheOracle,
    Corrective,
    FrankWolfe,
    Labelings,
    MeanParts,
    Pairwise,
    Relative,
    Solver,
    Weights,
    load_checkpoint,
    make_trainer,
    save_checkpoint,
)
from torchssvm.kinds.adapter import find_adapter
from torchssvm.solvers import Certificate, LatentTrainer
from torchssvm.steps import Away, BoxQP, CommonStep, Hybrid, MaxOracle

KINDS: dict[str, Callable[..., Listed]] = {
    "classes": classes,
    "chains": chains,
    "forbidden pairs": partial(chains, forbidding=1.0),
    "label sets": label_sets,
    "segments": segments,
    "graphs": graphs,
    "trees": trees,
    "arcs": arcs,
    "labelled arcs": labelled_arcs,
    "decisions": decisions,
    "matchings": matchings,
    "programs": partial(decisions, program=True),
    "pair swaps": partial(rankings, measure="pairs"),
    "ndcg": partial(rankings, measure="ndcg"),
    "precision": partial(rankings, measure="precision"),
    "slack of classes": lambda random, lam, dtype: rescaled(random, classes(random, lam, dtype)),
    "slack of chains": lambda random, lam, dtype: rescaled(random, chains(random, lam, dtype)),
}

ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-6}
"""What a certificate may err, as a share of its primal."""

UNSOLVED = {"programs": 1e-9}
"""How much better than that of a solver an output may score, as a share of the largest score: its tolerance."""


def dtype_of(seed: int) -> torch.dtype:
    return torch.float32 if seed % 3 == 2 else torch.float64


def make(kind: str, seed: int) -> Listed:
    random = np.random.default_rng(seed)
    return KINDS[kind](random, float(10.0 ** random.uniform(-3.0, 1.0)), dtype_of(seed))


def rules(random: np.random.Generator, compiled: bool, whole: bool) -> dict[str, Any]:
    """Random rules of a solver that suit each other."""
    labelings = Labelings(capacity=int(random.integers(1, 5)))
    if random.random() < 0.5:
        results = {"storage": labelings, "oracle": random.choice([MaxOracle(), CacheOracle()])}
        results["direction"] = random.choice([FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()])
        steps = [] if isinstance(results["direction"], Corrective) else [BoxQP(), CommonStep()]
    else:
        storage = random.choice([MeanParts()] if compiled else [MeanParts(), Weights()])
        results = {"storage": storage, "direction": FrankWolfe()}
        if whole and compiled and random.random() < 0.6:
            return {"storage": storage, "direction": Corrective(), "compiled": True}
        steps = [BoxQP(), CommonStep()]
    if steps and not compiled:
        results["block_steps"] = random.choice(steps)
    return {**results, "compiled": compiled}


def compiles(listed: Listed) -> bool:
    """Whether the compiled loop takes the problem."""
    try:
        adapter = find_adapter(listed.head)
    except TypeError:
        return False
    return listed.structure is None or listed.structure.same_as(adapter.structure)


def trainer_of(listed: Listed, kind: str, seed: int) -> Any:
    random = np.random.default_rng([seed, 1])
    compiled = compiles(listed) and bool(random.random() < 0.6)
    size = int(random.integers(1, 4))
    taken = {"round_visits": 2} if compiled else {"batch_size": size}
    return make_trainer(
        listed.head,
        listed,
        listed.truth.lam,
        solver=Solver(seed=seed, **taken, **rules(random, compiled, kind == "classes")),
        structure=listed.structure,
        progress=False,
    )


def faults_of(
    proof: Certificate, w: np.ndarray, truth: Reference, optimum: Bounds, rounding: float, unsolved: float = 0.0
) -> list[str]:
    """What is wrong in a certificate of weights ``w``."""
    wrong: list[str] = []
    largest = max(abs(a).max() + abs(c @ w).max() for a, c in zip(truth.losses, truth.changes, strict=True))
    primal = truth.primal(w)
    slack = rounding * primal + 1e-15 * largest  # a float64 sum may cancel: then its rounding is not small beside it
    short = slack + unsolved * largest
    if proof.primal < primal - short:
        wrong.append(
            f"the primal {proof.primal!r} is below that of its weights, {primal!r}, by {primal - proof.primal:.3g}"
        )
    if proof.exact and proof.primal > primal + slack:
        wrong.append(f"the exact primal {proof.primal!r} is above that of its weights, {primal!r}")
    if proof.dual > optimum.high + slack:
        wrong.append(
            f"the dual {proof.dual!r} is above the optimum, {optimum.high!r}, by {proof.dual - optimum.high:.3g}"
        )
    if proof.primal < optimum.low - short:
        wrong.append(f"the primal {proof.primal!r} is below the optimum, {optimum.low!r}")
    if proof.gap < 0.0 or proof.gap != proof.primal - proof.dual:
        wrong.append(f"the gap {proof.gap!r} is not primal - dual, {proof.primal - proof.dual!r}")
    return wrong


@dataclass
class Trace:
    """What a run has claimed.

    Attributes:
        values: The dual after each step.
        certificates: Each with the weights of the head at that time.
        resumed: The last certificate and weights of a run that was saved and loaded in the middle; every second seed.
    """

    values: list[float]
    certificates: list[tuple[Certificate, np.ndarray]]
    resumed: tuple[Certificate, np.ndarray] | None = None


def run(kind: str, seed: int, file: Path, steps: int) -> Trace:
    """So many steps, a certificate and a checkpoint, and the same once more."""
    listed = make(kind, seed)
    trainer, values, certificates = trainer_of(listed, kind, seed), [], []
    for part in range(2):
        for _ in range(steps):
            trainer.step()
            values.append(trainer.dual.value())
        certificates.append((trainer.certify(), listed.weights()))
        if not part and not seed % 2:
            save_checkpoint(file, trainer=trainer, dual=trainer.dual)
    if seed % 2:
        return Trace(values, certificates)
    again = make(kind, seed)
    other = trainer_of(again, kind, seed)
    load_checkpoint(file, trainer=other, dual=other.dual)
    for _ in range(steps):
        other.step()
    return Trace(values, certificates, (other.certify(), again.weights()))


def faults(trace: Trace, kind: str, seed: int) -> list[str]:
    listed, wrong, slack = make(kind, seed), [], ROUNDING[dtype_of(seed)]
    for before, after in itertools.pairwise([0.0, *trace.values]):
        if after < before - slack * (1.0 + abs(before)):
            wrong.append(f"the dual fell from {before!r} to {after!r}")
    optimum = enclose(listed.truth)
    for results, w in trace.certificates:
        wrong += faults_of(results, w, listed.truth, optimum, slack, UNSOLVED.get(kind, 0.0))
    for a, b in zip(trace.certificates[-1], trace.resumed or trace.certificates[-1], strict=True):
        if not np.array_equal(a, b):
            wrong.append("a resumed run has other bits")
    return wrong


def check(kind: str, seed: int, *, steps: int = 4) -> list[str]:
    """What a run claims wrongly; empty if nothing.

    Args:
        kind: One of ``KINDS``.
        seed: Of problem, rules and draws; every third problem is float32.
        steps: Before and after the run is saved and loaded.
    """
    with tempfile.TemporaryDirectory() as folder:
        return faults(run(kind, seed, Path(folder) / "run.pt", steps), kind, seed)


def check_processes(count: int, *, steps: int = 3) -> dict[tuple[str, int], list[str]]:
    """By kind and seed, what runs of two processes claim wrongly, on at least so many problems, as many of each kind.

    A problem has more than one example. One pair of processes runs them all, and the claims are checked here.
    """
    problems = []
    for kind in KINDS:
        check(kind, 1, steps=1)  # kernels are compiled and loaded before processes are forked
        seeds = (seed for seed in itertools.count(1) if len(make(kind, seed)) > 1)
        problems += [(kind, seed) for seed in itertools.islice(seeds, -(-count // len(KINDS)))]
    with tempfile.TemporaryDirectory() as folder:

        def job(rank: int) -> list[Trace]:
            return [run(kind, seed, Path(folder) / f"{kind} {seed}.pt", steps) for kind, seed in problems]

        first, second = in_processes(
            2, job, timeout=60.0, seconds=30.0 + 10.0 * len(problems)
        )  # each compiles the rounds
    wrong = {}
    for problem, one, other in zip(problems, first, second, strict=True):
        wrong[problem] = faults(one, *problem)
        if not np.array_equal(one.certificates[-1][1], other.certificates[-1][1]):
            wrong[problem].append("the processes hold different weights")
    return wrong


def check_latent(seed: int, *, rounds: int = 3) -> list[str]:
    """What the rounds of a run with hidden states claim wrongly: their certificates, and the objective."""
    random = np.random.default_rng(seed)
    dtype, lam = dtype_of(seed), float(10.0 ** random.uniform(-2.0, 0.5))
    shows = random.permutation([0, 0, 1])
    listed = (classes if random.random() < 0.5 else chains)(random, lam, dtype, shows=shows)
    for parameter in listed.head.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
    at = listed.weights()  # the hidden parts of the first round are those of the weights before it
    run = LatentTrainer(
        listed.head,
        listed,
        lam,
        structure=listed.structure,
        tolerance=Relative(0.02),
        max_passes=50.0,
        solver=Solver(seed=seed),
    )
    truth, wrong, slack = listed.truth, [], ROUNDING[dtype]
    for _ in range(rounds):
        w, before = listed.weights(), run.objectives[-1]
        scores = [changes @ at for changes in truth.changes]
        completed = [shown[np.argmax(s[shown])] for s, shown in zip(scores, listed.observed, strict=True)]
        # P_t: the hidden parts are fixed
        convex = Reference(truth.losses, [c - c[k] for c, k in zip(truth.changes, completed, strict=True)], [], lam)
        objective = convex.primal(w)
        near = slack * (1.0 + objective + max(abs(s).max() for s in scores))
        if abs(before - objective) > near:
            wrong.append(f"the objective {before!r} is not {objective!r}")
        result, optimum = run.step(), enclose(convex)
        if run.objectives[-1] > before:
            wrong.append(f"the objective rose from {before!r} to {run.objectives[-1]!r}")
        if result.dual > optimum.high + near:
            wrong.append(f"the dual {result.dual!r} of a round is above its optimum {optimum.high!r}")
        if (run.settled and len(run.objectives) == 1) or run.objectives[-1] == before:
            break
        wrong += faults_of(result, listed.weights(), convex, optimum, slack)
        if run.settled:
            break
        at = listed.weights()
    return wrong
