"""What the compiled loop calls of a kind: kernels that know the kind, called by address from kernels that do not.

The loop is compiled once for all kinds. Each kind compiles these kernels, which call the functions of :mod:`.block` by
its type. Annotations are the types of arguments, see :class:`~torchssvm.compiler.jit.ByAddress`.
"""

from __future__ import annotations

from torchssvm.compiler.jit import Addresses, ByAddress, njit
from torchssvm.compiler.vectors import set_rows
from torchssvm.kinds.block import (
    Labels,
    Marks,
    Rows,
    Sums,
    add_labeling,
    add_to_weights,
    decode,
    examine_block,
    list_rows_of,
    loss_of,
    mark_rows,
    mean_loss,
    other_potentials,
    potentials,
    read_potentials,
    read_slot,
    respond,
    respond_to_parts,
    score,
    solve_block,
    squared_length,
)


@ByAddress
@njit
def evaluate(kind, examples, model, i: int, length: int, blocks, count: int, scratch) -> bool:
    """The scores of ``count`` slots of block i, and of the target, in ``scratch.scores``.

    Returns what :func:`potentials` returns. The emissions have what these labelings and the mean parts of the rest
    read; :func:`decode_with_score` completes them.
    """
    some = count > 0 and not blocks.mixed[i]
    in_scratch = read_potentials(kind, examples, model, i, scratch, blocks.labelings[i], count, some)
    emission, scores = scratch.emission, scratch.scores
    transition = scratch.transition if in_scratch else model.transition
    for c in range(count):
        read_slot(i, c, examples, blocks, scratch.labels)
        scores[c] = score(kind, examples, i, scratch.labels, length, emission, transition)
    target = examples.y[examples.start[i] : examples.start[i + 1]]
    scores[count] = score(kind, examples, i, target, length, emission, transition)
    return in_scratch


@ByAddress
@njit
def decode_with_score(
    kind, examples, model, i: int, length: int, scratch, transition: Rows, labels: Labels
) -> tuple[float, float]:
    """:func:`decode` after :func:`evaluate`; returns the loss and the score of the labeling."""
    other_potentials(kind, examples, model, i, scratch)
    loss = decode(kind, examples, i, length, scratch, transition, labels)
    return loss, score(kind, examples, i, labels, length, scratch.emission, transition)


@ByAddress
@njit
def mean_losses(kind, examples, i: int, length: int, psi: Rows, sums: Sums) -> tuple[float, float]:
    """The sums of :func:`mean_loss` over the rows; ``sums[t]`` has the total and the absolute total in columns 1, 2."""
    told, size = 0.0, 0.0
    for t in range(length):
        mean, terms = mean_loss(kind, examples, i, t, psi[t], sums[t, 1], sums[t, 2])
        told, size = told + mean, size + terms
    return told, size


@ByAddress
@njit
def mark_labelings(
    kind, examples, i: int, blocks, count: int, is_new: bool, corner: Labels, scratch, used: Marks
) -> None:
    """Mark the rows of the pairs of the target, of slots whose mass changes and, if it ``is_new``, of the corner."""
    mark_rows(kind, examples, i, examples.y[examples.start[i] :], used)
    for c in range(count):
        if scratch.change[c + 1] != 0.0:
            read_slot(i, c, examples, blocks, scratch.labels)
            mark_rows(kind, examples, i, scratch.labels, used)
    if is_new:
        mark_rows(kind, examples, i, corner, used)


@ByAddress
@njit
def add_labelings(
    kind, examples, i: int, length: int, blocks, count: int, is_new: bool, scratch, delta: Rows, pairs: Rows
) -> None:
    """Add ``change (p(labels) - p(y))`` of slots and, if it ``is_new``, of the corner, to parts."""
    change, labels, corner, counts = scratch.change, scratch.labels, scratch.corner, scratch.pairs
    for c in range(count):
        if change[c + 1] != 0.0:
            read_slot(i, c, examples, blocks, labels)
            add_labeling(kind, examples, i, length, labels, change[c + 1], delta, pairs, counts)
    if is_new:
        add_labeling(kind, examples, i, length, corner, change[count + 1], delta, pairs, counts)


@ByAddress
@njit
def fill_products(
    kind, examples, model, i: int, length: int, labels: Labels, blocks, count: int, is_new: bool, scratch
) -> None:
    """Write products with ``Phi^T (p(labels) - p(y))`` to ``scratch.scores``.

    The other factors are the same of each slot and, if it ``is_new``, of the corner.
    """
    read = scratch, blocks.labelings[i], count, scratch.corner, is_new
    response, pairs = respond(kind, examples, model, i, length, labels, *read)
    score_at_response(kind, examples, i, length, blocks, count, is_new, response, pairs, scratch)
    rows = list_rows_of(kind, examples, i, labels, scratch)
    set_rows(scratch.pairs, None, scratch.rows, rows, None, None)


@ByAddress
@njit
def fill_products_of_rest(
    kind,
    examples,
    model,
    i: int,
    length: int,
    psi: Rows,
    psi_pairs: Rows,
    rows: Labels,
    blocks,
    count: int,
    is_new: bool,
    scratch,
) -> float:
    """As :func:`fill_products`, with ``Phi^T psi``; returns its square."""
    read = scratch, blocks.labelings[i], count, scratch.corner, is_new
    square, pairs = respond_to_parts(kind, examples, model, i, length, psi, psi_pairs, rows, *read)
    score_at_response(kind, examples, i, length, blocks, count, is_new, scratch.response, pairs, scratch)
    return square


@njit
def score_at_response(kind, examples, i, length, blocks, count, is_new, response, pairs, scratch):
    """Write the scores of the slots and of the corner, less the target's, to ``scratch.scores``."""
    target = score(kind, examples, i, examples.y[examples.start[i] : examples.start[i + 1]], length, response, pairs)
    for c in range(count):
        read_slot(i, c, examples, blocks, scratch.slot)
        scratch.scores[c] = score(kind, examples, i, scratch.slot, length, response, pairs) - target
    if is_new:
        scratch.scores[count] = score(kind, examples, i, scratch.corner, length, response, pairs) - target


_visits = Addresses(
    evaluate,
    decode_with_score,
    loss_of,
    add_labeling,
    mean_losses,
    mark_labelings,
    add_labelings,
    squared_length,
    add_to_weights,
)
_exact = Addresses(evaluate, decode_with_score, mean_losses, mark_labelings, add_labelings, add_to_weights)
_products = Addresses(fill_products, fill_products_of_rest)
_whole = Addresses(potentials, solve_block, examine_block, add_to_weights)
_exact_whole = Addresses(potentials, examine_block, add_to_weights)


@njit
def write_exact(calls, types):
    """Write the addresses that exact passes in float64 call, where the weights are float32."""
    _exact(calls, types)


@njit
def write_visits(calls, types):
    """Write the addresses that visits and exact passes call."""
    _visits(calls, types)


@njit
def write_products(calls, types):
    """Write the addresses that steps with inner products of labelings call too."""
    _products(calls, types)


@njit
def write_exact_whole(calls, types):
    """As :func:`write_exact`, of whole blocks."""
    _exact_whole(calls, types)


@njit
def write_whole(calls, types):
    """Write the addresses that steps and exact passes of whole blocks call."""
    _whole(calls, types)
