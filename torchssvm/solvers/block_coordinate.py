"""Block-coordinate Frank-Wolfe on a batch of blocks: [B13] Algorithm 4, with the minibatches and gaps of [G16].

Comments name the lines of Algorithm 4. ``BlockGap`` calls :func:`find_gaps` and :func:`find_steps` in its forward pass,
with the weights of that moment; its backward pass proposes the step. ``BCFW`` calls :func:`join` for the batches whose
backward passes it has seen, mostly one, and :func:`take`. A batch moves by ``gamma gamma_i`` of the way of block i:
the box QP chooses the gamma_i of its blocks, and the line search the gamma of them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.decoding import Labeling, OracleResult
from torchssvm.core.gradients import cheap_adjoint, gram_product, per_example_adjoint
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.operators import on_host, pick, read_together, upload
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import add_rows, dense, inner_product, select_examples
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import Stored
from torchssvm.steps.box_qp import BlockSteps, BoxQP
from torchssvm.steps.directions import Atoms, DirectionRule, FrankWolfe, MaxOracle, OracleRule
from torchssvm.steps.line_search import Line, LineSearch

LARGE = 2**26
"""Bytes. On a device, larger gradients of a batch are not made: ``potentials.gram`` computes their inner products."""


class Rules(Protocol):
    """The rules of a step, as ``BlockGap`` has them."""

    dual: DualState
    direction: DirectionRule
    oracle: OracleRule
    block_steps: BlockSteps


@dataclass(slots=True)
class Proposal:
    """The directions and steps of a batch of blocks, computed in the forward pass.

    The gradient of the weights is ``factor * sum_i gamma_i d_i``, with ``d_i = (1/n) Phi_i^T Delta_i`` and the step
    gamma_i of block i.
    """

    version: int  # ``DualState.version`` when the directions were computed
    index: Tensor  # [B] int64, the examples
    rows: Tensor  # [R] int64, the rows of the batch that count: the first of every example
    targets: Tensor | None  # [B] int64, digests of the examples' targets; None where the dual has them already
    stored: Stored  # the blocks
    block_steps: BlockSteps  # chooses the steps, of accumulated batches together
    factor: Tensor = field(init=False)  # the upstream gradient of the loss
    scale: float = 1.0  # the same number, once the step has read it
    corner: OracleResult = field(init=False)  # the outputs s_i
    block_gaps: Tensor = field(init=False)  # [B] float64, g_i at the weights of the forward pass
    change: Tensor | None = None  # [B, A + 1], of the atoms' masses; None: all mass goes to the corner
    loss_changes: Tensor = field(init=False)  # [B] float64, the change of l_i for a step of 1
    values: Tensor = field(init=False)  # [B] float64, the derivative of the dual along each direction
    parts: Parts = field(init=False)  # Delta_i in parts space, from ``Stored.combine``
    gradients: list[Tensor] | None = None  # n d_i, [B, *shape] each, if available
    gammas: Tensor = field(init=False)  # [B] float64 in [0, 1]; 0 in rows that do not count
    reference: list[Tensor] = field(init=False)  # sum_i gamma_i d_i, which the gradient is compared with

    def gap(self) -> Tensor:
        """The sum of the block gaps of the rows that count."""
        whole = self.rows.shape == self.index.shape
        return (self.block_gaps if whole else self.block_gaps[self.rows]).sum()


@torch.no_grad()
def find_gaps(
    batch: Proposal, rules: Rules, potentials: Potentials, theta: Potentials, target: Labeling, training: bool
) -> None:
    """Line 4: decode the corners; set the block gaps and, for ``training``, how the mass of the blocks moves.

    ``theta`` are the numbers of ``potentials``, without the graph.
    """
    dual, stored, n = rules.dual, batch.stored, rules.dual.num_examples
    if type(rules.direction) is FrankWolfe and type(rules.oracle) is MaxOracle and not dual.storage.keeps_labelings:
        # All mass moves to s_i = argmax_y L_i(y) + <p(y) - p(y_i), theta_i>.
        batch.corner = corner = find_corner(dual.structure, theta, target)
        # The block gap is the derivative of the dual towards s_i: g_i = <Delta_i, theta_i>/n + L_i/n - l_i.
        batch.loss_changes = corner.loss / n - dual.loss[batch.index]
        batch.values = batch.block_gaps = corner.score / n + stored.inner(theta) + batch.loss_changes
        return
    kept = stored.atoms(theta, dual.loss[batch.index])
    batch.corner = _find_corners(batch, rules, kept, theta, target)
    atoms = _with_corner(kept, batch, dual, lambda parts: gram_product(potentials, parts, dual.parameters))
    batch.block_gaps = atoms.gaps()
    if training:
        batch.change = rules.direction(atoms)
        batch.loss_changes = (batch.change * atoms.losses).sum(1) / n
        batch.values = (batch.change * atoms.scores).sum(1) / n + batch.loss_changes


def find_steps(
    batch: Proposal, rules: Rules, potentials: Potentials
) -> tuple[list[Tensor] | None, list[Tensor] | None]:
    """Lines 5 and 6 for each block of the batch: its direction ``Delta_i = p(s_i) - mu_i``, and its step gamma_i.

    Returns ``sum_i gamma_i d_i`` if the box QP has made it, and gradients that the storage adds to ``Phi_i^T Delta_i``.
    """
    with torch.no_grad():
        batch.parts, added = batch.stored.combine(batch.change, batch.corner)
    gradients = batch.gradients = _gradients(batch, rules, potentials, added)
    with torch.no_grad():
        values, rows, n, combined = batch.values, batch.rows, rules.dual.num_examples, None
        whole, weight = len(rows) == len(values), 1.0 / (rules.dual.lam * n**2)
        if not whole:
            values = values[rows]
        if gradients is not None:
            chosen = gradients if whole else [select_examples(g, rows) for g in gradients]
            gammas, combined, _ = rules.block_steps.solve(chosen, values, weight, 1.0 / n)
        elif potentials.gram is not None and _takes_gram(rules, potentials):
            assert isinstance(rules.block_steps, BoxQP)
            gram = potentials.gram(batch.parts)
            gammas = rules.block_steps.gammas(gram if whole else gram[rows][:, rows], values, weight)
        else:
            gammas = torch.ones_like(values)
        batch.gammas = gammas if whole else torch.zeros_like(batch.values).index_copy_(0, rows, gammas)
    return combined, added


class Direction(NamedTuple):
    """The direction of all batches whose gradients were accumulated."""

    gradients: list[Tensor]  # d, for each parameter
    value: float  # the derivative of the dual along d
    largest: float  # the largest feasible step
    moves: list[Tensor]  # of each batch's blocks, at step 1
    rows: list[Tensor]  # of each batch, those whose blocks move
    products: tuple[float, float, float] | None  # ``|w|^2``, ``<w, d>`` and ``|d|^2``, if known


def join(
    dual: DualState,
    batches: list[Proposal],
    gradients: list[Tensor],
    value: float,
    products: tuple[float, float, float] | None,
) -> Direction:
    """The direction of the batches together, whose ``gradients``, ``value`` and ``products`` belong to their sum.

    Raises:
        RuntimeError: The batches come from losses with different ``block_steps``.
        ValueError: The storage cannot move the batches together.
    """
    if len(batches) > 1 and len(rules := {repr(batch.block_steps) for batch in batches}) > 1:
        raise RuntimeError(f"block_steps={sorted(rules)} of accumulated batches differ: give the losses the same")
    moves = [batch.gammas if batch.scale == 1.0 else batch.scale * batch.gammas for batch in batches]
    rows, largest = [batch.rows for batch in batches], 1.0 / batches[0].scale
    if len(batches) > 1 and all(b.gradients is not None and b.block_steps.needs_gradients for b in batches):
        moves, rows, gradients = _solve_together(dual, batches)
        products, largest = None, 1.0
        value = sum(map(float, read_together(*(m @ b.values for m, b in zip(moves, batches, strict=True)))))
    elif len(batches) > 1:
        largest = _largest_step(batches)
    if dual.box.has_bounds:  # the box QP is then a lower bound of the dual, whose best step may be larger
        gradients = [dense(g) if bounded else g for g, bounded in zip(gradients, dual.box.bounded, strict=True)]
        largest = _farthest_step(batches, moves)
    if len(batches) > 1 or len(batches[0].rows) < len(batches[0].index):  # examples may repeat
        dual.storage.check_together([batch.stored for batch in batches], rows)
    if dual.recomputed is not None:
        # The step starts at ``recomputed``; the slopes, linear in w, were computed at the head's weights.
        moved = zip(dual.box.clip(dual.recomputed), dual.parameters, strict=True)
        value += inner_product([start.to(torch.float64) - w for start, w in moved], gradients)
    return Direction(gradients, value, largest, moves, rows, products)


def take(dual: DualState, batches: list[Proposal], d: Direction, line_search: LineSearch) -> float:
    """Lines 6 to 8: move weights and blocks along d; returns gamma."""
    # Line 6: the step that maximises the dual, gamma = clip(lam value / |d|^2, 0, largest).
    gamma = find_gamma(dual, line_search, d.gradients, d.value, d.largest, d.products[2] if d.products else None)
    # Line 8: w -= (gamma/lam) d, which is the change of sum_i w_i.
    dual.move_weights(d.gradients, -gamma / dual.lam, d.products)
    # Line 7: w_i and l_i move by gamma gamma_i of the way to the corner.
    for batch, move, rows in zip(batches, d.moves, d.rows, strict=True):
        move_blocks(dual, batch, gamma * move, rows)
    dual.count(*counts(batches, d.rows))
    dual.visits += len(batches)
    return gamma


def find_gamma(
    dual: DualState,
    line_search: LineSearch,
    gradients: list[Tensor],
    value: float,
    largest: float,
    squared_norm: float | None,
) -> float:
    """The gamma of the line search; ``squared_norm`` is ``|d|^2``, if known."""
    line = Line(value, gradients, dual.lam, largest, dual.origin, dual.box, dual.moved, dual.num_examples, squared_norm)
    gamma = float(line_search(line))
    if not 0.0 <= gamma <= largest:
        raise ValueError(f"line_search={line_search} gave the step {gamma}, which must be in [0, {largest}]")
    return gamma


def move_blocks(dual: DualState, batch: Proposal, move: Tensor, rows: Tensor) -> None:
    """Move the blocks of a batch's ``rows`` by ``move``, ``[B]``, and note their losses, gaps and targets."""
    index, gaps, corner = batch.index, batch.block_gaps.clamp(min=0.0), batch.corner
    decoded, changes = corner.decoded, move * batch.loss_changes
    place, targets = on_host(index), batch.targets
    batch.stored.move(move, rows, batch.change, batch.parts, batch.gradients)
    if rows.shape[0] < index.shape[0]:
        index, gaps, changes = index[rows], gaps[rows], changes[rows]
        first = on_host(rows)
        place, targets = place[first], None if targets is None else targets[first]
        decoded = None if decoded is None else decoded[rows]
    dual.loss.index_add_(0, index, changes)  # of distinct examples
    if targets is not None:
        dual.targets[place] = targets
    dual.relaxed |= corner.relaxed
    dual.gap_estimates.index_copy_(0, index, gaps)
    seen = gaps if decoded is None else torch.where(decoded, gaps, dual.oracle_gaps[index])
    dual.oracle_gaps.index_copy_(0, index, seen)


def counts(batches: list[Proposal], rows: list[Tensor]) -> tuple[int, int, int]:
    """Examples decoded, labelings taken from the cache, and blocks that move."""
    asked = [batch.corner.decoded for batch in batches]
    sizes = [len(batch.index) for batch in batches]
    calls = sum(size if some is None else int(on_host(some).sum()) for size, some in zip(sizes, asked, strict=True))
    return calls, sum(sizes) - calls, sum(map(len, rows))


def _find_corners(
    batch: Proposal, rules: Rules, kept: tuple[Tensor, ...], theta: Potentials, target: Labeling
) -> OracleResult:
    """The corners: cached labelings where the oracle rule accepts them, decoded elsewhere."""
    dual, stored = rules.dual, batch.stored
    decoded: Tensor | None = None
    if rules.oracle.needs_labelings and kept[0].shape[1] > 1:
        mass, scores, losses, valid = kept
        hinges = scores + losses
        best = hinges[:, 1:].masked_fill(~valid[:, 1:], -torch.inf).max(1)
        gaps = (best.values - (mass * hinges).sum(1)) / dual.num_examples
        decoded = rules.oracle.misses(gaps, batch.index, dual) | torch.isinf(best.values)
    if decoded is None or bool(on_host(decoded).all()):
        corner = find_corner(dual.structure, theta, target)
        corner.column = stored.lookup(corner.labeling)
        return corner
    column = best.indices + 1
    score, loss = (t.gather(1, column.unsqueeze(1)).squeeze(1) for t in (scores, losses))
    corners = OracleResult(stored.cached(column), score, loss, decoded=decoded, column=column)
    if not bool(on_host(decoded).any()):
        return corners
    rows = upload(on_host(decoded).nonzero().flatten(), decoded.device)
    corner = find_corner(dual.structure, theta.select(rows), tree_map(lambda t: pick(t, rows), target))
    pairs = zip(tree_tensors(corners.labeling), tree_tensors(corner.labeling), strict=True)
    labelings = [old.index_copy(0, rows, new.to(old.dtype)) for old, new in pairs]
    corners.labeling, corners.relaxed = tree_replace(corners.labeling, labelings), corner.relaxed
    corners.score, corners.loss = score.index_copy(0, rows, corner.score), loss.index_copy(0, rows, corner.loss)
    corners.column = torch.where(decoded, stored.lookup(corners.labeling), column)
    return corners


def _with_corner(
    kept: tuple[Tensor, ...], batch: Proposal, dual: DualState, respond: Callable[[Parts], Parts]
) -> Atoms:
    """The atoms of the blocks, and a last column for the corner, valid where it is not yet an atom."""
    corner, (mass, scores, losses, valid) = batch.corner, kept
    assert corner.column is not None
    new = corner.column == 0
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    return Atoms(
        torch.cat([mass, torch.zeros_like(mass[:, :1])], 1),
        torch.cat([scores, torch.where(new, corner.score, 0.0).unsqueeze(1)], 1),
        torch.cat([losses, torch.where(new, corner.loss, 0.0).unsqueeze(1)], 1),
        torch.cat([valid, new.unsqueeze(1)], 1),
        torch.where(new, valid.shape[1], corner.column),
        dual.num_examples,
        lambda: weight * batch.stored.curvature(corner, respond),
    )


def _gradients(
    batch: Proposal, rules: Rules, potentials: Potentials, added: list[Tensor] | None
) -> list[Tensor] | None:
    """``n d_i``, that is ``Phi_i^T Delta_i``, ``[B, *shape]`` for each parameter, if needed or cheap; else None."""
    dual = rules.dual
    if dual.storage.needs_gradients:
        gradients: list[Tensor] | None = per_example_adjoint(potentials, batch.parts, dual.parameters)
    elif not rules.block_steps.needs_gradients or (added is None and _takes_gram(rules, potentials)):
        return None
    else:
        waiting = [g for other in dual.mailbox.waiting for g in getattr(other, "gradients", None) or []]
        kept = sum(g.numel() * g.element_size() for g in waiting)
        gradients = cheap_adjoint(potentials, batch.parts, dual.parameters, kept)
    if gradients is None or added is None:
        return gradients
    return [dense(g) + more for g, more in zip(gradients, added, strict=True)]


def _takes_gram(rules: Rules, potentials: Potentials) -> bool:
    """Whether a device computes inner products of large gradients without these, and their sum by a backward pass.

    Steps of several batches at once then choose their gammas for each batch alone.
    """
    if type(rules.block_steps) is not BoxQP or rules.dual.storage.needs_gradients or potentials.gram is None:
        return False
    size = potentials.batch_size * sum(p.numel() * p.element_size() for p in rules.dual.parameters)
    return potentials.device.type != "cpu" and size > LARGE


def _solve_together(dual: DualState, batches: list[Proposal]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Choose the steps of all batches by one box QP; an example counts at its first occurrence.

    Returns the coefficients of the rows of each batch, the rows of each batch that count, and the gradient.
    """
    seen: set[int] = set()
    rows: list[Tensor] = []
    for batch in batches:
        index = on_host(batch.index).tolist()
        fresh = [row for row in on_host(batch.rows).tolist() if index[row] not in seen]
        seen.update(index[row] for row in fresh)
        rows.append(upload(torch.tensor(fresh, dtype=torch.int64), batch.index.device))
    stacked = [
        torch.cat(
            [g if len(g) == len(some) else g.index_select(0, some) for g, some in zip(several, rows, strict=True)]
        )
        for several in zip(*(batch.gradients or [] for batch in batches), strict=True)
    ]
    stacked = [g.coalesce() if g.is_sparse else g for g in stacked]
    values = torch.cat([batch.values[some] for batch, some in zip(batches, rows, strict=True)])
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    gammas, combined, _ = batches[0].block_steps.solve(stacked, values, weight, 1.0 / dual.num_examples)
    coefficients = [
        torch.zeros_like(batch.gammas).index_put_((some,), part)
        for batch, some, part in zip(batches, rows, gammas.split([len(some) for some in rows]), strict=True)
    ]
    return coefficients, rows, combined


def _largest_step(batches: list[Proposal]) -> float:
    """The largest feasible step of several batches that have chosen gammas; moves of a repeated example add up.

    A batch whose loss was scaled by c moves by c of its direction at step 1.
    """
    scales = torch.cat([torch.full((len(b.rows),), b.scale, dtype=b.gammas.dtype) for b in batches])
    return 1.0 / float(add_rows(torch.zeros_like(scales), _examples(batches), scales).max())


def _farthest_step(batches: list[Proposal], coefficients: list[Tensor]) -> float:
    """The largest feasible step if blocks move by ``coefficients`` at step 1."""
    moves = torch.cat(read_together(*(c[b.rows] for b, c in zip(batches, coefficients, strict=True))))
    most = float(add_rows(torch.zeros_like(moves), _examples(batches), moves).max())
    return 1.0 / most if most > 0.0 else 1.0


def _examples(batches: list[Proposal]) -> Tensor:
    """A number for the example of each row that counts, on the CPU: 0 to the number of distinct examples less 1."""
    index = torch.cat([on_host(batch.index)[on_host(batch.rows)] for batch in batches])
    return index.unique(return_inverse=True)[1]
