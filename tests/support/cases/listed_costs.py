"""Problems of decisions, of matchings and of rankings, with all outputs listed; see :mod:`listed_problems`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from cases.listed_problems import Listed, Maker, draw
from torchssvm import Batch, Decisions, LinearDecisions, LinearEdges, LinearRanking, Matching, Ranking
from torchssvm.structures.decisions import (
    Assignment,
    Decision,
    IntegerProgram,
    Knapsack,
    Selection,
    ShortestPath,
    Situations,
    SpanningTree,
)
from torchssvm.structures.matching import Edges
from torchssvm.structures.ranking import NDCG, PairSwaps, PrecisionAt


def subsets(size: int) -> np.ndarray:
    return np.array(list(itertools.product((0, 1), repeat=size)))


def feasible(
    random: np.random.Generator, n: int, *, program: bool
) -> tuple[Any, list[np.ndarray], torch.Tensor | None]:
    """An oracle, the decisions of each example, and what the oracle is given."""
    if program:
        size, rows = int(random.integers(2, 6)), int(random.integers(1, 3))
        matrix, sides = random.integers(0, 4, (rows, size)), random.integers(2, 6, (n, rows))
        maximize = bool(random.random() < 0.5)
        given = sides if random.random() < 0.5 else np.repeat(sides[:1], n, 0)
        oracle = IntegerProgram(matrix, sides[0], maximize=maximize)
        every = subsets(size)
        listed = [every[(every @ matrix.T <= side).all(1)] for side in given]
        return oracle, listed, None if (given == sides[0]).all() else torch.from_numpy(given).double()
    kind = random.choice(["paths", "selection", "knapsack", "trees", "assignments"])
    if kind == "paths":  # 2 x 3 places: steps to the right and down
        oracle = ShortestPath.grid(2, 3)
        arcs = [(a, b) for a, b in grid_arcs(2, 3)]
        return oracle, [paths(arcs, 0, 5)] * n, None
    if kind in ("trees", "assignments"):
        maximize = bool(random.random() < 0.5)
        every = trees() if kind == "trees" else partners(2, 3).reshape(-1, 6)
        oracle = SpanningTree(FOUR, maximize=maximize) if kind == "trees" else Assignment(2, 3, maximize=maximize)
        return oracle, [every[every.sum(1) == (3 if kind == "trees" else 2)]] * n, None
    if kind == "selection":
        size, at_most, maximize = 5, bool(random.random() < 0.5), bool(random.random() < 0.5)
        limit = random.integers(1, size + 1, n)
        given = bool(random.random() < 0.5)
        ks = limit if given else np.repeat(limit[:1], n)
        every = subsets(size)
        listed = [every[(every.sum(1) <= k) & (at_most | (every.sum(1) == k))] for k in ks]
        oracle = Selection(size, int(limit[0]), at_most=at_most, maximize=maximize)
        return oracle, listed, torch.from_numpy(ks) if given else None
    weights, capacity = random.integers(0, 4, 5), random.integers(1, 8, n)
    given = bool(random.random() < 0.5)
    most = capacity if given else np.repeat(capacity[:1], n)
    every = subsets(5)
    listed = [every[every @ weights <= limit] for limit in most]
    return Knapsack(weights, int(capacity[0])), listed, torch.from_numpy(most) if given else None


FOUR = list(itertools.combinations(range(4), 2))


def trees() -> np.ndarray:
    """Sets of three edges of four nodes that leave no cycle: no three nodes have them all."""
    every = subsets(6)
    cycles = [[int(set(edge) <= set(nodes)) for edge in FOUR] for nodes in itertools.combinations(range(4), 3)]
    return every[(every.sum(1) == 3) & ~(every @ np.array(cycles).T == 3).any(1)]


def partners(left: int, right: int) -> np.ndarray:
    """All sets of edges in which no two share a node, ``[K, left, right]``."""
    every = subsets(left * right).reshape(-1, left, right)
    return every[(every.sum(1) <= 1).all(1) & (every.sum(2) <= 1).all(1)]


def matchings(random: np.random.Generator, lam: float, dtype: torch.dtype) -> Listed:
    """Bipartite graphs of up to three and three nodes, padded or all of one size, with edges that cost nothing."""
    n, width, ragged = int(random.integers(1, 5)), 2, bool(random.random() < 0.7)
    sizes = random.integers(1, 4, (n if ragged else 1, 2)).repeat(1 if ragged else n, 0)
    wrong, missed = random.uniform(0.2, 2.0, 2)
    normalize = bool(random.random() < 0.5)
    structure = Matching(precision_cost=wrong, recall_cost=missed, normalize=normalize)
    head = LinearEdges(width, structure=structure).to(dtype)
    x, y = draw(random, n, *sizes.max(0), width, dtype=dtype), np.zeros((n, *sizes.max(0)), int)
    made = Maker(head, lam)
    for row, (left, right) in enumerate(sizes):
        features_of, every = x[row, :left, :right].double().numpy(), partners(left, right)
        target = every[int(random.integers(len(every)))]
        possible = (random.random((left, right)) < 0.2) & (target == 0)
        y[row, :left, :right] = target + 2 * possible
        losses = wrong * (every & (target == 0) & ~possible).sum((1, 2)) + missed * (target & (every == 0)).sum((1, 2))
        outputs = [{"weight": np.einsum("st,stf->f", edges, features_of)} for edges in every]
        made.add(losses / (left if normalize else 1), outputs, {"weight": np.einsum("st,stf->f", target, features_of)})

    def take(rows: list[int]) -> Batch:
        index, lengths = torch.tensor(rows), torch.from_numpy(sizes[rows])
        left, right = lengths.amax(0).tolist()
        features, labels = x[rows, :left, :right], torch.from_numpy(y[rows])[:, :left, :right]
        if not ragged:
            return Batch(features, labels, index)
        return Batch(Edges(features, lengths[:, 1].contiguous()), labels, index, lengths[:, 0].contiguous())

    return Listed(head, take, made.truth)


def grid_arcs(rows: int, columns: int) -> list[tuple[int, int]]:
    """Row by row: the arcs to the right, then those down, as ``ShortestPath.grid`` numbers them."""
    arcs = []
    for i in range(rows):
        arcs += [(i * columns + j, i * columns + j + 1) for j in range(columns - 1)]
        arcs += [(i * columns + j, i * columns + j + columns) for j in range(columns) if i + 1 < rows]
    return arcs


def paths(arcs: list[tuple[int, int]], start: int, end: int) -> np.ndarray:
    results: list[np.ndarray] = []

    def go(place: int, used: list[int]) -> None:
        if place == end:
            results.append(np.bincount(used, minlength=len(arcs)))
        for number, (a, b) in enumerate(arcs):
            if a == place:
                go(b, [*used, number])

    go(start, [])
    return np.stack(results)


def decisions(random: np.random.Generator, lam: float, dtype: torch.dtype, *, program: bool = False) -> Listed:
    """SPO+ over decisions, some with known costs and with constraints of their own."""
    n, width = int(random.integers(1, 5)), 2
    oracle, listed, given = feasible(random, n, program=program)
    size, sign = oracle.num_costs, 1.0 if oracle.maximize else -1.0
    shared, bias, known = (bool(random.random() < share) for share in (0.4, 0.5, 0.4))
    head = LinearDecisions(width, structure=Decisions(oracle), shared=shared, bias=bias).to(dtype)
    x = draw(random, *((n, size, width) if shared else (n, width)), dtype=dtype)
    scale = float(random.choice([1.0, 1.0, 100.0]))
    cost = torch.from_numpy(scale * random.normal(size=(n, size)))
    fixed = torch.from_numpy(scale * random.normal(size=(n, size))) if known else None
    if fixed is not None:
        cost = cost + fixed
    made, best = Maker(head, lam), []
    for row, every in enumerate(listed):
        x_i, costs = x[row].double().numpy(), cost[row].numpy()
        y = every[(sign * every @ costs).argmax()]
        best.append(y)
        loss = sign * (y - every) @ costs
        if fixed is not None:
            loss = loss + 2.0 * sign * (every - y) @ fixed[row].numpy()

        def phi(d: np.ndarray, x_i: np.ndarray = x_i) -> dict[str, np.ndarray]:
            if shared:
                return {"weight": 2.0 * sign * (d @ x_i)[None], "bias": 2.0 * sign * d.sum(keepdims=True).astype(float)}
            return {"weight": 2.0 * sign * np.outer(d, x_i), "bias": 2.0 * sign * d.astype(float)}

        made.add(loss, [phi(d) for d in every], phi(y))
    target = torch.from_numpy(np.stack(best)).long()

    def take(rows: list[int]) -> Batch:
        rest = (None if each is None else each[rows] for each in (fixed, given))
        return Batch(Situations(x[rows], *rest), Decision(target[rows], cost[rows]), torch.tensor(rows))

    return Listed(head, take, made.truth)


def rankings(random: np.random.Generator, lam: float, dtype: torch.dtype, *, measure: str) -> Listed:
    """Lists of up to four documents: all orders; of pair swaps every set of them, which makes the same hinge."""
    n, width = int(random.integers(1, 5)), 2
    lengths = random.integers(1, 5, n)
    k = int(random.integers(1, 4))
    made_of = {"pairs": PairSwaps(), "ndcg": NDCG(k), "precision": PrecisionAt(k)}
    head = LinearRanking(width, structure=Ranking(made_of[measure])).to(dtype)
    x, made, grades = draw(random, n, int(lengths.max()), width, dtype=dtype), Maker(head, lam), []
    for row, size in enumerate(lengths.tolist()):
        documents, grade = x[row, :size].double().numpy(), random.integers(0, 3, size)
        if measure in ("precision", "ndcg"):
            grade[int(random.integers(size))] = 2  # one is relevant
        level = grade if measure in ("pairs", "ndcg") else (grade >= 1).astype(int)
        grades.append(grade)
        pairs = [(i, j) for i in range(size) for j in range(size) if level[i] > level[j]]
        orders = [np.array(o) for o in itertools.permutations(range(size))]  # the place of each document
        if measure == "pairs":
            swaps = subsets(len(pairs)) if pairs else np.zeros((1, 0))
            losses = swaps.sum(1) / max(len(pairs), 1)
            moves = [documents[j] - documents[i] for i, j in pairs]
            changes = swaps @ np.stack(moves) / len(pairs) if pairs else np.zeros((1, width))
        else:
            places = np.arange(size)
            discount = 1.0 / np.log2(places + 2.0) * (places < k) if measure == "ndcg" else (places < k) * 1.0
            gain = 2.0**grade - 1.0 if measure == "ndcg" else level * 1.0
            best = float(np.sort(gain)[::-1] @ discount)
            losses = np.array([1.0 - float(gain @ discount[o]) / best for o in orders])
            sums = np.stack([discount[o] @ documents for o in orders])
            ideal = [bool((np.diff(level[np.argsort(o)]) <= 0).all()) for o in orders]
            changes = sums - sums[ideal].mean(0)
        made.truth.losses.append(losses)
        made.truth.changes.append(np.concatenate([changes, np.zeros((1, width))]))  # the mean of the ideal orders
        made.truth.losses[-1] = np.append(losses, 0.0)

    def take(rows: list[int]) -> Batch:
        sizes = torch.from_numpy(lengths[rows])
        y = torch.full((len(rows), int(sizes.max())), -1)
        for place, row in enumerate(rows):
            y[place, : lengths[row]] = torch.from_numpy(grades[row])
        return Batch(x[rows, : y.shape[1]], y, torch.tensor(rows), sizes)

    return Listed(head, take, made.truth)
