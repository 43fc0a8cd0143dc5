"""Problems of every kind that is compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cases.arborescences import own_outputs
from cases.graphs import pad_edges, random_edges
from cases.problems import PROBLEMS, Problem, rng
from torchssvm import (
    Arborescence,
    Batch,
    Decisions,
    Graphs,
    LinearArcs,
    LinearDecisions,
    LinearEdges,
    LinearMultilabel,
    LinearPairwiseGraph,
    LinearRanking,
    LinearSegments,
    LinearTree,
    Matching,
    PairwiseGraph,
    Ranking,
    Segments,
    SparseFeatures,
    SparseLinearChain,
    WeightedLabels,
)
from torchssvm.structures.arborescence import NonProjective, Projective
from torchssvm.structures.chain import Transitions
from torchssvm.structures.decisions import Assignment, Knapsack, Selection, ShortestPath, Situations, SpanningTree
from torchssvm.structures.matching import Edges
from torchssvm.structures.pairwise_graph import TreeReweighted
from torchssvm.structures.ranking import NDCG, PairSwaps, PrecisionAt, RankingMeasure
from torchssvm.structures.tree import ForestFeatures, LinearForest
from torchssvm.structures.weighted import Weighted, WeightedHead


def sparse(problem: Problem) -> Problem:
    """The same problem with most features zero: they are packed as lists."""
    problem.x[torch.rand(problem.x.shape, generator=rng(7)) < 0.7] = 0.0
    return problem


COST = torch.tensor([[0.0, 1.0, 0.5], [2.0, 0.0, 0.25], [1.0, 3.0, 0.0]])
TRANSITIONS = Transitions(
    torch.tensor([[True, True, False], [True, True, True], [False, True, True]]),
    first=torch.tensor([True, True, False]),
    last=torch.tensor([False, True, True]),
)
SEQUENCES = {
    "multiclass": lambda **o: PROBLEMS["multiclass"](4, n=8, lam=0.05, **o),
    "multiclass, costs, no bias": lambda **o: PROBLEMS["multiclass"](4, n=8, lam=0.05, cost=COST, bias=False, **o),
    "multiclass, sparse": lambda **o: sparse(PROBLEMS["multiclass"](4, n=8, features=9, lam=0.05, **o)),
    "chain": lambda **o: PROBLEMS["chain"](5, n=8, states=3, longest=4, lam=0.05, **o),
    "chain, sparse, nine states": lambda **o: sparse(
        PROBLEMS["chain"](5, n=8, features=9, states=9, longest=4, lam=0.05, **o)
    ),
    "chain, transitions": lambda **o: PROBLEMS["chain"](
        5, n=8, states=3, longest=4, lam=0.05, transitions=TRANSITIONS, **o
    ),
    "chain, no bias, no boundary": lambda **o: PROBLEMS["chain"](
        5, n=8, states=3, longest=4, lam=0.05, bias=False, boundary=False, ragged=False, **o
    ),
}


def label_sets(*, n: int = 8, labels: int = 4, features: int = 3, dtype: torch.dtype = torch.float64, **o) -> Problem:
    random = rng(6)
    x, y = torch.randn(n, features, generator=random, dtype=dtype), torch.randint(0, 2, (n, labels), generator=random)
    return Problem(LinearMultilabel(features, labels, **o).to(dtype), x, y, None, 0.05)


def trees(*, shared: bool = True, n: int = 8, states: int = 3, dtype: torch.dtype = torch.float64, **o) -> Problem:
    """A tree of six nodes, of which examples have the first three to six."""
    random = rng(8)
    lengths = torch.randint(3, 7, (n,), generator=random)
    lengths[2] = 6
    x, y = torch.randn(n, 6, 4, generator=random, dtype=dtype), torch.randint(0, states, (n, 6), generator=random)
    head = LinearTree(4, states, [-1, 0, 0, 2, 1, 2], shared=shared, **o).to(dtype)
    return Problem(head, x, y, lengths, 0.05)


def segments(*, n: int = 8, features: int = 3, ragged: bool = True, **o) -> Problem:
    """Random labels of frames, of which runs of up to three are segments."""
    random, dtype = rng(21), o.pop("dtype", torch.float64)
    structure = Segments(3, 3, **o)
    lengths = torch.randint(2, 6, (n,), generator=random)
    lengths[n // 2] = 5
    frames = torch.arange(5) // 2 + torch.randint(0, 3, (n, 1), generator=random)
    x, y = torch.randn(n, 5, features, generator=random, dtype=dtype), structure.from_frames(frames % 3)
    head = LinearSegments(features, 3, 3, structure=structure).to(dtype)
    return Problem(head, x, y, lengths if ragged else None, 0.05)


def rankings(
    measure: RankingMeasure, *, n: int = 8, longest: int = 5, features: int = 3, ragged: bool = True, **o
) -> Problem:
    """Random lists with grades 0 to 2; each has a relevant document, and no two of their labelings tie."""
    random, dtype = rng(13), o.get("dtype", torch.float64)
    x = torch.randn(n, longest, features, generator=random, dtype=dtype)
    y = torch.randint(0, 3, (n, longest), generator=random)
    y[:, 0] = 1
    lengths = torch.randint(2, longest + 1, (n,), generator=random)
    lengths[n // 2] = longest
    head = LinearRanking(features, structure=Ranking(measure)).to(dtype)
    return Problem(head, x, y, lengths if ragged else None, 0.05)


class Pairs(Problem):
    """Bipartite graphs; both sides of a batch are cropped to the largest of it."""

    widths: Tensor | None = None

    def batch(self, rows):
        batch = super().batch(rows)
        if self.widths is None:
            return batch
        widths = self.widths[batch.index]
        most = int(widths.max())
        return batch.replace(x=Edges(batch.x[:, :, :most], widths), y=batch.y[:, :, :most])


def matchings(*, n: int = 8, features: int = 3, ragged: bool = True, **o) -> Pairs:
    """Random matchings of up to 3 and 4 nodes, with some edges that cost nothing; the cost of an edge is no tie."""
    random, dtype = rng(14), o.pop("dtype", torch.float64)
    x = torch.randn(n, 3, 4, features, generator=random, dtype=dtype)
    lengths, widths = (torch.randint(1, most + 1, (n,), generator=random) for most in (3, 4))
    y = 2 * (torch.rand(n, 3, 4, generator=random) < 0.2).long()
    for i in range(n):
        for s, t in enumerate(torch.randperm(4, generator=random)[:3].tolist()):
            y[i, s, t] = 1 if s else y[i, s, t]
    lengths[0], widths[0] = 3, 4
    head = LinearEdges(features, structure=Matching(**o)).to(dtype)
    result = Pairs(head, x, y, lengths if ragged else None, 0.05)
    result.widths = widths if ragged else None
    return result


class Decided(Problem):
    """Decisions; ``x`` are features, ``y`` the true costs, of which ``fixed`` are a part."""

    fixed: Tensor | None = None
    given: Tensor | None = None

    def batch(self, rows):
        index = torch.tensor(list(rows), dtype=torch.int64)
        fixed, given = (None if each is None else each[index] for each in (self.fixed, self.given))
        target = self.structure.target(self.y[index], given)
        return Batch(Situations(self.x[index], fixed, given), target, index)


def decisions(oracle: Any, *, n: int = 8, known: bool = False, given: Tensor | None = None, **o) -> Decided:
    random, dtype, size = rng(13), o.pop("dtype", torch.float64), oracle.num_costs
    head = LinearDecisions(o.pop("features", 3), structure=Decisions(oracle), **o).to(dtype)
    x = torch.randn(n, *([size] if head.shared else []), head.in_features, generator=random, dtype=dtype)
    cost, fixed = (torch.randn(n, size, generator=random, dtype=torch.float64) for _ in range(2))
    result = Decided(head, x, cost + fixed if known else cost, None, 0.05)
    result.fixed, result.given = fixed if known else None, given
    return result


SIX = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]]


class Forests(Problem):
    """Forests of up to five nodes, each with its own."""

    edges: Tensor
    parent: Tensor
    forward: Tensor

    def batch(self, rows):
        batch = super().batch(rows)
        longest = batch.x.shape[1]
        trees = (t[batch.index, :longest] for t in (self.edges, self.parent, self.forward))
        return batch.replace(x=ForestFeatures(batch.x, *trees))


def forests(*, n: int = 8, states: int = 3, ragged: bool = True, dtype: torch.dtype = torch.float64) -> Forests:
    """Random forests; an edge leads from the parent to the child, or back."""
    random = rng(18)
    lengths = torch.randint(2, 6, (n,), generator=random)
    lengths[3] = 5
    x, z = (torch.randn(n, 5, size, generator=random, dtype=dtype) for size in (4, 2))
    parent = torch.stack([torch.randint(-1, v, (n,), generator=random) for v in range(5)], 1)
    parent = parent.masked_fill((torch.arange(5) >= lengths.unsqueeze(1)) & ragged, -1)
    y = torch.randint(0, states, (n, 5), generator=random)
    head = LinearForest(4, 2, states).to(dtype)
    result = Forests(head, x, y, lengths if ragged else None, 0.05)
    result.edges, result.parent = z.masked_fill((parent < 0).unsqueeze(2), 0.0), parent
    result.forward = torch.rand(n, 5, generator=random) < 0.5
    return result


class LabelledGraphs(Problem):
    """Graphs of up to five nodes, each with edges of its own, among which stands a place without one."""

    edges: list[Tensor]
    z: list[Tensor]

    def batch(self, rows):
        batch = super().batch(rows)
        index, longest = batch.index, batch.x.shape[1]
        most = None if self.lengths is not None else max(map(len, self.edges))
        ends = pad_edges([self.edges[i] for i in index.tolist()], most)
        z = batch.x.new_full((*ends.shape[:2], self.head.edge_features), 9.0)
        for row, i in enumerate(index.tolist()):
            z[row, : len(self.edges[i])] = self.z[i]
        weights = 0.5 + torch.arange(self.n * 5, dtype=torch.float64).view(-1, 5)[index, :longest].cos() ** 2
        return batch.replace(x=Graphs(batch.x, z, ends), y=WeightedLabels(batch.y, weights))


def labelled_graphs(
    oracle: Any = None,
    *,
    n: int = 8,
    states: int = 3,
    links: int = 2,
    directed: bool = True,
    ragged: bool = True,
    dtype: torch.dtype = torch.float64,
) -> LabelledGraphs:
    """Random graphs, most of them with cycles; now and then an edge is given twice."""
    random = rng(21)
    lengths = torch.randint(1, 6, (n,), generator=random) if ragged else torch.full((n,), 5)
    lengths[3] = 5
    x, y = torch.randn(n, 5, 4, generator=random, dtype=dtype), torch.randint(0, states, (n, 5), generator=random)
    edges = [random_edges(size, random, share=0.8) for size in lengths.tolist()]
    edges = [torch.cat([pairs[:2], torch.full((1, 2), -1), pairs[2:]]) for pairs in edges]
    head = LinearPairwiseGraph(4, links, states, directed=directed, structure=PairwiseGraph(states, oracle)).to(dtype)
    result = LabelledGraphs(head, x, y, lengths if ragged else None, 0.05)
    result.edges, result.z = edges, [torch.randn(len(pairs), links, generator=random, dtype=dtype) for pairs in edges]
    return result


OTHERS = {
    "graphs": labelled_graphs,
    "graphs, one symmetric table, messages alone, not padded": lambda **o: labelled_graphs(
        TreeReweighted(2, 0, 0), links=0, directed=False, ragged=False, **o
    ),
    "forests": forests,
    "forests, not padded": lambda **o: forests(ragged=False, **o),
    "paths": lambda **o: decisions(ShortestPath.grid(2, 3), **o),
    "selections, shared, known costs": lambda **o: decisions(
        Selection(5, 2, at_most=True), shared=True, known=True, given=torch.arange(8) % 4 + 1, **o
    ),
    "knapsacks, shared, sparse, no bias": lambda **o: sparse(
        decisions(Knapsack([3, 2, 2, 1, 4], 6), shared=True, bias=False, features=9, **o)
    ),
    "trees, shared": lambda **o: decisions(SpanningTree(SIX), shared=True, **o),
    "assignments, known costs": lambda **o: decisions(Assignment(2, 3, maximize=True), known=True, **o),
    "matchings": matchings,
    "matchings, sparse, not padded": lambda **o: sparse(
        matchings(features=9, ragged=False, normalize=False, precision_cost=0.5, **o)
    ),
    "rankings, pair swaps": lambda **o: rankings(PairSwaps(), **o),
    "rankings, pair swaps, counted, not padded": lambda **o: rankings(PairSwaps(normalize=False), ragged=False, **o),
    "rankings, NDCG, not padded": lambda **o: rankings(NDCG(), ragged=False, **o),
    "rankings, precision, sparse": lambda **o: sparse(rankings(PrecisionAt(2), features=9, **o)),
    "segments": segments,
    "segments, spans, boundaries, not padded": lambda **o: segments(span_loss=True, boundary=True, ragged=False, **o),
    "trees": trees,
    "trees, a matrix for each edge, no bias": lambda **o: trees(shared=False, bias=False, **o),
    "label sets": label_sets,
    "label sets, no pairs, no bias": lambda **o: label_sets(pairwise=False, bias=False, **o),
}
KINDS = SEQUENCES | OTHERS


class Weighing(Problem):
    """A problem whose examples count up to three times, and some not at all."""

    def __init__(self, inner: Problem) -> None:
        super().__init__(WeightedHead(inner.head), inner.x, inner.y, inner.lengths, inner.lam)
        self.inner, self.times = inner, torch.arange(inner.n) * 5 % 4

    def batch(self, rows):
        batch = self.inner.batch(rows)
        weights = self.times[batch.index].to(torch.float64)
        return batch.replace(x=Weighted(batch.x, weights), y=Weighted(batch.y, weights))

    def repeated(self) -> Batch:
        """Every example so many times, and without a weight."""
        batch = self.inner.batch(torch.arange(self.n).repeat_interleave(self.times).tolist())
        return batch.replace(index=torch.arange(len(batch.index)))


class Arcs(Problem):
    """Sentences; both axes of a batch's arcs are cropped, and features have values where ``weighted``."""

    weighted = False

    def batch(self, rows):
        batch = super().batch(rows)
        columns = batch.x[:, :, : batch.x.shape[1] + 1]
        values = 0.5 + columns.to(self.head.weight.dtype).cos() if self.weighted else None
        return batch.replace(x=SparseFeatures(columns, values))


def arcs(
    among,
    *,
    weighted: bool = False,
    labels: int | None = None,
    n: int = 8,
    longest: int = 4,
    dtype: torch.dtype = torch.float64,
) -> Arcs:
    """``n`` sentences of up to ``longest`` tokens, with up to three of nine features for every arc."""
    random = rng(3)
    lengths = torch.randint(2, longest + 1, (n,), generator=random)  # one token has one output, whose gap is rounding
    lengths[n // 2] = longest
    columns = torch.randint(-1, 9, (n, longest, longest + 1, 3), generator=random)
    y = torch.full((n, longest), -1)
    for i, length in enumerate(lengths.tolist()):
        every = own_outputs(among, length)
        y[i, :length] = torch.tensor(every[int(torch.randint(len(every), (), generator=random))])
    structure = Arborescence(among, num_labels=labels)
    if labels is not None:
        y = structure.join(y, torch.randint(0, labels, y.shape, generator=random))
    result = Arcs(LinearArcs(9, num_labels=labels, structure=structure).to(dtype), columns, y, lengths, 0.05)
    result.weighted = weighted
    return result


ARCS = {
    "arcs, projective": lambda **o: arcs(Projective(single_root=True), **o),
    "arcs, crossing, with values": lambda **o: arcs(NonProjective(), weighted=True, **o),
    "arcs with labels": lambda **o: arcs(Projective(), labels=3, **o),
    "arcs with labels, crossing, with values": lambda **o: arcs(
        NonProjective(single_root=True), labels=9, weighted=True, **o
    ),
}


class Lists(Problem):
    def batch(self, rows):
        batch = super().batch(rows)
        return batch.replace(x=SparseFeatures(batch.x))


def lists(*, n: int = 12, features: int = 200, states: int = 3, longest: int = 4, **options) -> Lists:
    """A chain on up to two of many features for every token."""
    random = rng(11)
    lengths = torch.randint(1, longest + 1, (n,), generator=random)
    lengths[0] = longest
    columns = torch.randint(-1, features, (n, longest, 2), generator=random)
    y = torch.randint(0, states, (n, longest), generator=random)
    return Lists(SparseLinearChain(features, states, **options).double(), columns, y, lengths, 0.05)
