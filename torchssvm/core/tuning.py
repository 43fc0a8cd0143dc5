"""Memory access of compiled kernels. It affects only their speed."""

from __future__ import annotations

# Measured for float32 with AVX2, 32 KB of L1 and 512 KB of L2 cache for each core.
LANES = 8  # rows are padded to a multiple, so vector loops have no scalar remainder
CACHE = 2**18  # most bytes of a matrix that stays in the L2 cache as a whole
PAIR = 2  # examples that share such a matrix
BLOCK = 2**16  # bytes of a block of a larger matrix; the prefetcher follows no more than some eight long rows
GROUP = 16  # examples that share each block
GROUP_MEMORY = 2**26  # most bytes of a group's working memory
GRAIN = 400_000  # pairs of states, 20 to 60 microseconds: the time to wake up another thread


def plan(batch: int, states: int, itemsize: int, shared: bool, rows_each: int) -> tuple[int, int]:
    """How many examples read their matrices together, and how many rows of a matrix at a time.

    Args:
        batch: B.
        states: K.
        itemsize: Bytes of a number.
        shared: Whether the ``[K, K]`` matrices are the same for all examples.
        rows_each: Rows of K scores in an example's working memory.
    """
    row = states * itemsize
    height = states if states * row <= CACHE else max(1, BLOCK // row)
    if not shared:
        return 1, height
    group = PAIR if height == states else min(GROUP, GROUP_MEMORY // (rows_each * row))
    return max(1, min(group, batch)), height
