"""Some blocks as they were at the start of a round, and the way back towards them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.core.vectors import set_row
from torchssvm.kinds.block import count_rows, length_of, pair_rows_of, size_of
from torchssvm.kinds.examples import Examples
from torchssvm.solvers.compiled.atoms import add_to_rest, rest_views
from torchssvm.solvers.compiled.state import BlockArrays


class Kept(NamedTuple):
    """Copies of the blocks ``own``, as in ``BlockArrays``, and of their losses."""

    own: Any  # [U] int64, distinct blocks
    mass: Any  # [U, C]
    loss: Any  # [U, C]
    labelings: Any  # [U, C, N]
    rest_mass: Any  # [U]
    rest_loss: Any  # [U]
    emission: Any  # [rows, K], psi of the rests; zero where there are none
    pairs: Any  # [rows, K], psi of their pairs
    losses: Any  # [U], l_i


def keep_blocks(own: np.ndarray, examples: Examples, blocks: BlockArrays, losses: np.ndarray) -> Kept:
    """Copies of the blocks ``own``, ``[U]`` int64, distinct; ``losses`` ``[n]`` are l_i."""
    copies = [getattr(blocks, name)[own] for name in ("mass", "loss", "labelings", "rest_mass", "rest_loss")]
    rows = count_rows(examples, own, np.zeros((2, 2), np.int64))[0]
    held = blocks.rest_emission, blocks.rest_transition
    emission, pairs = (np.zeros((count, a.shape[1]), a.dtype) for count, a in zip(rows, held, strict=True))
    _copy_rests(own, examples, blocks, emission, pairs)
    return Kept(own, *copies, emission, pairs, losses[own])  # type: ignore[call-arg]


@njit
def _copy_rests(own: Any, examples: Any, blocks: Any, emission: Any, pairs: Any) -> None:
    row, pair = 0, 0
    for i in own:
        length, height = length_of(examples.kind, examples, i), pair_rows_of(examples.kind, examples, i)
        psi, held, _ = rest_views(examples, blocks, i, length)
        if blocks.rest_emission_start[i] > 0:
            set_row(emission[row : row + length], psi, None, None)
            set_row(pairs[pair : pair + height], held, None, None)
        row, pair = row + length, pair + height


@njit
def blend(kept: Any, share: float, examples: Any, blocks: Any, losses: Any, n: int, counts: Any) -> None:
    """Give every block ``share``, 0 to 1, of its dual variables of now, and the rest of those that it had.

    A labeling that has lost its slot since then goes into the rest, which the block must have. ``n`` is that of all
    processes; ``counts`` ``[K, K]`` float64 is zero, or empty without pairs.
    """
    before, row, pair = 1.0 - share, 0, 0
    for u in range(len(kept.own)):
        i = kept.own[u]
        length = length_of(examples.kind, examples, i)
        losses[i] = before * kept.losses[u] + share * losses[i]
        psi, pairs, _ = rest_views(examples, blocks, i, length)  # not read where there is no rest
        if blocks.rest_emission_start[i] > 0:
            for t in range(length):
                for k in range(psi.shape[1]):
                    psi[t, k] = before * kept.emission[row + t, k] + share * psi[t, k]
            for k in range(len(pairs)):
                for m in range(pairs.shape[1]):
                    pairs[k, m] = before * kept.pairs[pair + k, m] + share * pairs[k, m]
        blocks.rest_mass[i] = before * kept.rest_mass[u] + share * blocks.rest_mass[i]
        blocks.rest_loss[i] = before * kept.rest_loss[u] + share * blocks.rest_loss[i]
        for c in range(blocks.mass.shape[1]):
            blocks.mass[i, c] *= share
            old = before * kept.mass[u, c]
            if old > 0.0:
                stays = True
                for t in range(size_of(examples, i)):
                    stays &= blocks.labelings[i, c, t] == kept.labelings[u, c, t]
                if stays:
                    blocks.mass[i, c] += old
                else:
                    add_to_rest(examples, i, length, kept.labelings[u, c], old, blocks, counts)
                    blocks.rest_mass[i] += old
                    blocks.rest_loss[i] += old * kept.loss[u, c] / n
                    blocks.mixed[i] = True
        row, pair = row + length, pair + pair_rows_of(examples.kind, examples, i)
