"""Outputs too many to decode: passes of GDMM over chains and label sets, and what max oracles take on the same data."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm import (
    BCFW,
    GDMM,
    BlockGap,
    Chain,
    DualState,
    Labelings,
    SparseLinearChain,
    SparseLinearMultilabel,
    TorchLoop,
)
from torchssvm.core.batch import apply_head, in_order
from torchssvm.datasets import LargeChains, Multilabel, MultilabelScores, SparseRows, UnitRows, multilabel_scores
from torchssvm.solvers.gdmm import AwayStep, BlockGreedy, BruteForce, FullyCorrective, Penalty, SortedOracle
from torchssvm.steps import BoxQP, CommonStep

from .measuring import Clock
from .memory import MIB, resident, set_back

THRESHOLDS = (0.983, 0.984)  # of the test accuracy on bibtex that the logs of [Y16] are compared by
RULES = {"FullyCorrective": FullyCorrective, "AwayStep": AwayStep, "BlockGreedy": BlockGreedy}
ORACLES = {"sorted": SortedOracle, "brute force": BruteForce}


def make(states: int, chains: int, lam: float, rule: str, oracle: str) -> tuple[GDMM, LargeChains]:
    """GDMM on synthetic chains, before its first pass."""
    data = LargeChains(num_states=states, num_chains=chains)
    head = SparseLinearChain(data.in_features, states, boundary=False, structure=Chain(states))
    rules = {"rule": RULES[rule](), "oracle": ORACLES[oracle]()}
    return GDMM(head, in_order(data), num_examples=chains, lam=lam, **rules), data


def gdmm(
    states: int,
    chains: int,
    passes: int,
    lam: float,
    rule: str = "FullyCorrective",
    oracle: str = "sorted",
) -> dict[str, Any]:
    """Passes of GDMM over chains.

    The high-water mark of memory is that of the passes, data and weights included, above what Python, torch and the
    kernels take.
    """
    for _ in range(2):
        make(states, 3, lam, rule, oracle)[0].step()  # compiles
    base = set_back()
    optim, data = make(states, chains, lam, rule, oracle)
    seconds, visited = [], []
    for _ in range(passes):
        clock = Clock()
        report = optim.step()
        seconds.append(clock.stop()["cpu_seconds"])
        visited.append(report.visited / max(report.queries, 1))
    peak = resident("VmHWM")
    tokens = len(data.states)
    clock = Clock()
    certificate = optim.certify()
    return {
        "tokens": tokens,
        "pass_cpu_seconds": seconds,
        "visited": visited,
        "certificate_cpu_seconds": clock.stop()["cpu_seconds"],
        "gap": certificate.gap,
        "primal": certificate.primal,
        "violation": certificate.violation,
        "peak_mib": peak / MIB,
        "above_base_mib": (peak - base) / MIB,
        "dual_bytes_per_token": active_bytes(optim) / tokens,
        "block_bytes_per_token": 4.0 * (states + states**2 * chains / tokens),  # mean parts of BCFW, float32
    }


def active_bytes(optim: GDMM) -> float:
    """What entries that are active take: keys of 8 bytes and one number (two for messages) of 8."""
    variables, factors, sides = optim.problem.duals
    return 16.0 * float(variables.size.sum() + factors.size.sum()) + 24.0 * float(sides.size.sum())


def bcfw(states: int, chains: int, lam: float, sample: int, batch: int, sweeps: int) -> dict[str, Any]:
    """CPU seconds of BCFW's first steps on some of the chains, and of its max oracle alone; scaled to all tokens.

    Blocks are kept as labelings, which are the smallest. Each step also reads and writes all weights, K^2 of which are
    those of label pairs.

    Args:
        states: K.
        chains: How many there are.
        lam: Regularisation.
        sample: Chains that are visited; rounded up to whole batches, and a batch before them that compiles.
        batch: Chains of a step.
        sweeps: Of the box QP; 0 is one step for the batch.
    """
    data = LargeChains(num_states=states, num_chains=chains)
    head = SparseLinearChain(data.in_features, states, boundary=False, structure=Chain(states))
    dual = DualState.for_head(head, chains, lam, storage=Labelings())
    block_steps = BoxQP(sweeps) if sweeps else CommonStep()
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual, block_steps=block_steps)
    batch = min(batch, chains // 2)
    steps = min(-(-sample // batch), chains // batch - 1)
    oracle, whole, tokens = 0.0, 0.0, 0
    for number, index in enumerate(torch.arange(batch * (steps + 1)).split(batch)):
        its = data.__getitems__(index)
        clock = Clock()
        optim.zero_grad()
        loss(head(its.x, its.lengths), its.y, its.index).backward()
        optim.step()
        step = clock.stop()["cpu_seconds"]
        with torch.no_grad():
            potentials = head(its.x, its.lengths)
            target = head.structure.check_target(its.y, potentials)
            clock = Clock()
            head.structure.augmented_argmax(potentials, target)
        if number:
            oracle += clock.stop()["cpu_seconds"]
            whole += step
            tokens += int(its.lengths.sum())
    scale = len(data.states) / tokens
    return {
        "chains": batch * steps,
        "batch": batch,
        "sweeps": sweeps,
        "oracle_pass_cpu_seconds": oracle * scale,
        "pass_cpu_seconds": whole * scale,
        "kept_bytes_per_token": dual.storage.nbytes() / len(data.states),
    }


def part(whole: Multilabel, which: Tensor) -> Multilabel:
    """The examples ``which``, numbered anew."""

    def rows(of: SparseRows) -> SparseRows:
        columns, values = of.lists(which)
        there = columns >= 0
        return SparseRows.of(there.sum(1).numpy(), columns[there].numpy(), values[there].numpy(), of.num_columns)

    made = copy.copy(whole)
    made.features, made.labels = rows(whole.features), rows(whole.labels)
    return made


@torch.no_grad()
def scores_of(head: nn.Module, data: Multilabel) -> MultilabelScores:
    """The sets of labels that joint decoding finds, against the true ones."""
    structure: Any = head.structure
    results = [structure.argmax(apply_head(head, batch)).labeling for batch in in_order(data)]
    return multilabel_scores(data.labels.dense(), torch.cat(results))


def reached(points: Sequence[tuple[float, float]], threshold: float) -> dict[str, float | None]:
    """CPU seconds at which the accuracy was there first, and those from which it stayed there."""
    first = next((at for at, accuracy in points if accuracy >= threshold), None)
    below = [place for place, (_, accuracy) in enumerate(points) if accuracy < threshold]
    after = points[below[-1] + 1 :] if below else points
    return {"first": first, "for_good": after[0][0] if after else None}


def label_sets(lam: float, passes: int, rho: float, root: str | None = None) -> dict[str, Any]:
    """GDMM on bibtex: test accuracy after every pass, and when it reached what [Y16]'s logs are compared by."""
    data, test = (Multilabel("bibtex", split, scaling=UnitRows(), root=root) for split in ("train", "test"))
    points: list[tuple[float, float]] = []
    for examples, rounds in ((part(data, torch.arange(10)), 2), (data, passes)):  # the first compiles
        head = SparseLinearMultilabel(data.in_features, data.num_labels)
        penalty = Penalty(rho * float(head.structure.costs.mean()))
        optim = GDMM(head, in_order(examples), num_examples=len(examples), lam=lam, penalty=penalty)
        clock, points = Clock(), []
        for _ in range(rounds):
            optim.step()
            points.append((clock.stop()["cpu_seconds"], scores_of(head, test).accuracy))
            clock.go()
    last, scores = optim.certify(), scores_of(head, test)
    return {
        "points": points,
        "reached": {f"{at:g}": reached(points, at) for at in THRESHOLDS},
        "nothing": 1.0 - float(test.labels.dense().mean()),
        "gap": last.gap,
        "relaxed_gap": last.relaxed_gap,
        "exact": last.exact,
        "violation": last.violation,
        **{name: getattr(scores, name) for name in ("accuracy", "exact_match", "micro_f1", "macro_f1")},
    }


def label_sets_bcfw(lam: float, passes: int, root: str | None = None, interactions: bool = True) -> dict[str, Any]:
    """BCFW on the same problem with this library's decoder, or on every label alone: test accuracy after every pass."""
    data, test = (Multilabel("bibtex", split, scaling=UnitRows(), root=root) for split in ("train", "test"))
    few = part(data, torch.arange(min(64, len(data))))
    points: list[tuple[float, float]] = []
    for examples, rounds in ((few, 1), (data, passes)):  # the first compiles
        head = SparseLinearMultilabel(data.in_features, data.num_labels, pairwise=interactions)
        loss = BlockGap(DualState.for_head(head, num_examples=len(examples), lam=lam))
        loop = TorchLoop(head, loss, examples, batch_size=64)
        clock, seen, points = Clock(), 0, []
        while len(points) < rounds:
            seen += loop.step()
            if seen >= len(examples) * (len(points) + 1):
                points.append((clock.stop()["cpu_seconds"], scores_of(head, test).accuracy))
                clock.go()
    return {"points": points, "reached": {f"{at:g}": reached(points, at) for at in THRESHOLDS}}


def mean_pass(results: dict[str, Any]) -> float:
    """CPU seconds of a pass, the mean of all after the first."""
    return statistics.mean(results["pass_cpu_seconds"][1:])


MEASURES = {"gdmm": gdmm, "label_sets": label_sets, "bcfw": bcfw, "label_sets_bcfw": label_sets_bcfw}
