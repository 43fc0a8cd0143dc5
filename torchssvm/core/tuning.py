"""Memory access of compiled kernels. It affects only their speed."""

from __future__ import annotations

# Measured for float32 with AVX-512, 48 KB of L1 and 2 MB of L2 cache for each core.
WHOLE = 128  # up to this many states, one padded copy of a matrix serves many positions
LANES = 8  # rows are padded to a multiple, so vector loops have no scalar remainder
LOCKSTEP = 2**20  # bytes; a matrix at least this large is read in blocks, each for a group of examples
GROUP = 16  # examples that share a block
BLOCK = 16, 2048  # rows, and bytes of a row: 32 KB fit in the L1 cache
GROUP_MEMORY = 2**26  # most bytes of a group's working memory
GRAIN = 400_000  # pairs of states, 20 to 60 microseconds: the time to wake up another thread


def plan(
    batch: int, states: int, itemsize: int, matrices: tuple[int, int], rows_each: int
) -> tuple[int, tuple[int, int, int]]:
    """The size of a group of examples, and the shape of a block of their matrices.

    Args:
        batch: B.
        states: K.
        itemsize: Bytes of a number.
        matrices: (B or 1, N or 1), the number of ``[K, K]`` matrices by example and by position.
        rows_each: Rows of K scores in an example's working memory.

    Returns:
        The size of a group; and (rows of a block, columns of a block, width of working rows). A group of 1 copies the
        whole padded matrix for all positions, or reads matrices in place if rows is 0. A larger group reads the one
        shared matrix block by block.
    """
    width = -(-states // LANES) * LANES
    if matrices[1] == 1 and states <= WHOLE:
        return 1, (states, width, width)
    if matrices == (1, 1) and states * states * itemsize >= LOCKSTEP:
        rows, columns = BLOCK[0], BLOCK[1] // itemsize
        wide = -(-states // columns) * columns
        group = min(GROUP, batch, GROUP_MEMORY // (rows_each * wide * itemsize))
        if group > 1:
            return group, (rows, columns, wide)
    return 1, (0, width, width)
