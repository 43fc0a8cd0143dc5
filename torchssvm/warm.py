"""The command ``torchssvm warm``: compile the kernels of kinds of output ahead, and keep them on disk."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.compiler import jit, stock
from torchssvm.core.batch import Batch, in_order, tree_map
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.solvers import solve
from torchssvm.solvers.evaluation import evaluate
from torchssvm.structures import (
    Arborescence,
    Decisions,
    Graphs,
    LinearArcs,
    LinearChain,
    LinearDecisions,
    LinearEdges,
    LinearMulticlass,
    LinearMultilabel,
    LinearPairwiseGraph,
    LinearRanking,
    LinearSegments,
    LinearTree,
    Ranking,
    SparseLinearChain,
    SparseLinearMultilabel,
    arborescence,
    decisions,
    grid_edges,
    ranking,
)
from torchssvm.structures.tree.forest import Forest, ForestFeatures, LinearForest

# Examples, the longest, features, states. So many features tell all rows apart, so that the primal becomes small: where
# float32 is too coarse for it, exact passes run in float64, and these kernels are compiled too.
_N, _T, _F, _K, _LAM = 12, 4, 256, 3, 1e-4


class _Drawn:
    """A map-style dataset of drawn examples: features, targets and lengths."""

    def __init__(self, x: Any, y: Any, lengths: Tensor | None = None) -> None:
        self.x, self.y, self.lengths = x, y, lengths

    def __len__(self) -> int:
        return _N

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        index = torch.as_tensor(rows)
        x, y, lengths = tree_map(lambda t: t[index], (self.x, self.y, self.lengths))
        return Batch(x, y, torch.arange(_N)[index], lengths)

    @staticmethod
    def collate(batch: Batch) -> Batch:
        return batch


Problem = tuple[Any, Any]  # a head and examples


def _normal(*shape: int) -> Tensor:
    return torch.randn(_N, *shape)


def _lengths() -> Tensor:
    return 2 + torch.arange(_N) % (_T - 1)


def _padded(y: Tensor) -> Tensor:
    """Labels ``[n, T]``, -1 behind the length."""
    return y.masked_fill(torch.arange(_T) >= _lengths()[:, None], -1)


def _lists(*shape: int, values: bool) -> SparseFeatures:
    """Two features for each row, which no other row has."""
    columns = torch.arange(2 * _N * math.prod(shape)).reshape(_N, *shape, 2)
    return SparseFeatures(columns, torch.rand(columns.shape) if values else None)


def _labels(*shape: int) -> Tensor:
    return torch.randint(0, _K, (_N, *shape))


def _chain() -> Problem:
    return LinearChain(_F, _K), _Drawn(_normal(_T, _F), _padded(_labels(_T)), _lengths())


def _listed_chain(values: bool) -> Problem:
    return SparseLinearChain(2 * _F, _K), _Drawn(_lists(_T, values=values), _padded(_labels(_T)), _lengths())


def _label_sets(pairwise: bool) -> Problem:
    return LinearMultilabel(_F, _K, pairwise=pairwise), _Drawn(_normal(_F), torch.randint(0, 2, (_N, _K)))


def _listed_label_sets(pairwise: bool) -> Problem:
    head = SparseLinearMultilabel(2 * _F, _K, pairwise=pairwise)
    return head, _Drawn(_lists(values=True), torch.randint(0, 2, (_N, _K)))


def _segments() -> Problem:
    labels = _labels(_T // 2).repeat_interleave(2, 1)
    labels[:, ::2] += _K  # a segment begins at every second frame
    return LinearSegments(_F, _K, max_duration=3), _Drawn(_normal(_T, _F), _padded(labels), _lengths())


def _tree() -> Problem:
    parent = [-1, *(node // 2 for node in range(_T - 1))]
    return LinearTree(_F, _K, parent), _Drawn(_normal(_T, _F), _labels(_T))


def _forest() -> Problem:
    parent = (torch.arange(_T) - 1).expand(_N, _T)
    x = ForestFeatures(_normal(_T, _F), torch.ones(_N, _T, 1), parent, torch.ones(_N, _T, dtype=torch.bool))
    return LinearForest(_F, 1, _K, structure=Forest(_K)), _Drawn(x, _padded(_labels(_T)), _lengths())


def _graph() -> Problem:
    edges = grid_edges(2, _T // 2)
    x = Graphs(_normal(_T, _F), torch.ones(_N, len(edges), 1), edges.expand(_N, *edges.shape))
    return LinearPairwiseGraph(_F, 1, _K), _Drawn(x, _labels(_T))


def _ranking(measure: Any) -> Problem:
    grades = _labels(_T)
    grades[:, 0] = 1  # every list has a relevant document
    examples = _Drawn(_normal(_T, _F), _padded(grades), _lengths())
    return LinearRanking(_F, structure=Ranking(measure())), examples


def _listed_ranking(measure: Any) -> Problem:
    head, examples = _ranking(measure)
    examples.x = examples.x * (torch.arange(_F) % 8 == 0)  # mostly zeros are listed
    return head, examples


def _arcs(among: Any, labels: int | None = None) -> Problem:
    heads, trees = _padded(torch.arange(_T).expand(_N, _T)), Arborescence(among(), num_labels=labels)
    head = LinearArcs(2 * _F, num_labels=labels, structure=trees)
    y = trees.join(heads, torch.zeros_like(heads))  # each token hangs on the one before
    return head, _Drawn(_lists(_T, _T + 1, values=False), y, _lengths())


def _matching() -> Problem:
    return LinearEdges(_F), _Drawn(_normal(_T, _T, _F), torch.eye(_T, dtype=torch.int64).expand(_N, _T, _T))


def _decision(oracle: Callable[[], Any]) -> Problem:
    structure = Decisions(oracle())
    problems = decisions.DecisionProblems(_normal(_F), torch.rand(_N, structure.num_costs), structure)
    return LinearDecisions(_F, structure=structure), problems


def _classes() -> Problem:
    return LinearMulticlass(_F, _K), _Drawn(_normal(_F), _labels())


def _listed_classes() -> Problem:
    return LinearMulticlass(2 * _F, _K), _Drawn(_lists(values=True), _labels())


def _each(make: Callable[[Any], Problem], *arguments: Any) -> list[Callable[[], Problem]]:
    return [partial(make, argument) for argument in arguments]


_ORACLES = (
    lambda: decisions.ShortestPath.grid(3, 3),
    lambda: decisions.Selection(5, 2),
    lambda: decisions.Knapsack([1, 2, 3, 2], 5),
    lambda: decisions.Assignment(3),
    lambda: decisions.SpanningTree([[0, 1], [1, 2], [2, 3], [0, 3], [0, 2]]),
)

KINDS: dict[str, tuple[str, list[Callable[[], Problem]]]] = {
    "chain": ("ChainSVC, LinearChain, SparseLinearChain", [_chain, *_each(_listed_chain, False, True)]),
    "label-set": (
        "MultilabelSVC, LinearMultilabel, SparseLinearMultilabel",
        [*_each(_label_sets, True, False), *_each(_listed_label_sets, True, False)],
    ),
    "segments": ("SegmentSVC, LinearSegments", [_segments]),
    "tree": ("LinearTree", [_tree]),
    "graph": ("GraphSVC, LinearPairwiseGraph; graph cuts compile nothing", [_forest, _graph]),
    "ranking": (
        "RankingSVC, LinearRanking, by pairs and by NDCG",
        [make for by in (_ranking, _listed_ranking) for make in _each(by, ranking.PairSwaps, ranking.NDCG)],
    ),
    "arcs": (
        "LinearArcs, without and with labels",
        [
            *_each(_arcs, arborescence.NonProjective, arborescence.Projective),
            partial(_arcs, arborescence.Projective, 3),
        ],
    ),
    "matching": ("LinearEdges", [_matching]),
    "decision": ("PredictThenOptimize, LinearDecisions", _each(_decision, *_ORACLES)),
    "classes": ("MultinomialSVC, LinearMulticlass", [_classes, _listed_classes]),
}
"""By name, what a kind serves, and its problems. The first kinds need all that kinds share."""


class Warmed(NamedTuple):
    """A kind that is ready: its CPU seconds, and whether a kernel was compiled."""

    kind: str
    seconds: float
    compiled: bool

    def __str__(self) -> str:
        return f"{self.kind}: {self.seconds:.1f} CPU s" if self.compiled else f"{self.kind}: already kept"


def warm(kinds: Iterable[str] = (), *, processes: int | None = None, float64: bool = False) -> Iterator[Warmed]:
    """Train and decode drawn problems of these kinds, none for all, so that their kernels are compiled and kept.

    What kinds share is compiled with the first of them, before the others begin. Yields each kind when it is ready.

    Args:
        kinds: Of :data:`KINDS`.
        processes: How many compile at the same time; None is one for each core.
        float64: Whether kernels for float64 features are compiled too.
    """
    chosen = [kind for kind in KINDS if kind in set(kinds)] or [*KINDS]
    # The first problem of every kind, then the second: two of a kind share kernels.
    jobs = sorted(((kind, place) for kind in chosen for place in range(len(KINDS[kind][1]))), key=lambda job: job[1])
    done: dict[str, list[Any]] = {kind: [] for kind in chosen}
    # New interpreters: forked ones would share the threads of torch.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes or _cores(), len(jobs)), spawn, initializer=_begin) as pool:
        first = pool.submit(_warm_one, *jobs[0], float64)
        first.result()
        for job in (first, *as_completed([pool.submit(_warm_one, *job, float64) for job in jobs[1:]])):
            kind, *told = job.result()
            done[kind].append(told)
            if len(done[kind]) == len(KINDS[kind][1]):
                seconds, compiled = zip(*done[kind], strict=True)
                yield Warmed(kind, sum(seconds), any(compiled))


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin() -> None:
    """Make this process ready to compile, and end with the process that began it, even if that is killed."""
    torch.set_num_threads(1)
    jit.announce_nothing()  # the lines of the command say it
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _warm_one(kind: str, place: int, float64: bool) -> Warmed:
    """Train and decode a problem of a kind."""
    compiled, start = jit.compiling_seconds(), time.process_time()
    for double in (False, True)[: 1 + float64]:
        torch.manual_seed(0)
        head, problems = KINDS[kind][1][place]()
        if double:
            head.double()
            problems.x = tree_map(lambda t: t.double() if t.is_floating_point() else t, problems.x)
        _use(head, problems)
    return Warmed(kind, time.process_time() - start, jit.compiling_seconds() > compiled)


def _use(head: Any, problems: Any) -> None:
    """What users do first: train, decode and evaluate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so few passes, and of so small a lambda
        solve(head, problems, _LAM, max_passes=60, progress=False)
    evaluate(head, head.structure, in_order(problems))


def folder_of_kernels() -> Path:
    """Where kernels are kept: the folder that their folders lie in; RuntimeError where none can be written to."""
    from torchssvm.solvers.compiled.loop import visit_blocks

    if stock.is_on():
        raise RuntimeError("stock Numba keeps no kernels on disk: unset TORCHSSVM_STOCK_NUMBA")
    kept = getattr(getattr(visit_blocks.dispatcher, "_cache", None), "cache_path", None)
    if kept is None:
        raise RuntimeError("no folder for kernels can be written to: set NUMBA_CACHE_DIR to one that can")
    package = Path(__file__).parent
    return package if Path(kept).is_relative_to(package) else Path(kept).parent


def main(args: Sequence[str]) -> None:
    """The command line, without its first word."""
    lines = [f"  {kind:10} {serves}" for kind, (serves, _) in KINDS.items()]
    parser = argparse.ArgumentParser(
        "torchssvm warm",
        description="Compile kernels ahead, and keep them on disk, so that no later process waits for them.",
        epilog="\n".join(["kinds:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", metavar="kind", help="what to compile; by default all kinds")
    parser.add_argument("--processes", type=int, help="how many compile at the same time; by default one a core")
    parser.add_argument("--float64", action="store_true", help="for float64 features too, NumPy's default")
    given = parser.parse_args(args)
    if unknown := [kind for kind in given.kinds if kind not in KINDS]:
        parser.error(f"no kind is called {', '.join(unknown)}: name some of {', '.join(KINDS)}")
    if given.processes is not None and given.processes < 1:
        parser.error(f"--processes is {given.processes}: give at least 1")
    try:
        folder = folder_of_kernels()
    except RuntimeError as error:
        parser.error(str(error))
    print(f"kernels are kept in {folder}", flush=True)
    for ready in warm(given.kinds, processes=given.processes, float64=given.float64):
        print(ready, flush=True)
