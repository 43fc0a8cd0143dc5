"""How compiled kernels go through memory. Nothing but speed depends on it."""

from __future__ import annotations

# All of these are from measurements: float32, AVX-512, 48 KB of L1 and 2 MB of L2 cache for each core.
WHOLE = 128  # up to so many states, one copy of a matrix with padded rows serves many positions
LANES = 8  # rows are padded to a multiple: no scalar remainder after the vector loops
LOCKSTEP = 2**20  # bytes; a larger matrix is read in blocks, each for a group of examples
GROUP = 16  # examples that share a block
BLOCK = 16, 2048  # rows and bytes of a row: 32 KB stay in the L1 cache
GROUP_MEMORY = 2**26  # most bytes of working memory of a group
GRAIN = 400_000  # pairs of states, 20 to 60 microseconds: what it takes to wake up another thread


def plan(
    batch: int, states: int, itemsize: int, matrices: tuple[int, int], rows_each: int
) -> tuple[int, tuple[int, int, int]]:
    """How many examples go together, and the shape of a block of their matrices.

    Args:
        batch: B.
        states: K.
        itemsize: Bytes of a number.
        matrices: (B or 1, N or 1), the numbers of ``[K, K]`` matrices by example and by position.
        rows_each: Rows of K scores that an example needs in working memory.

    Returns:
        The size of a group; and rows and columns of a block, and the width of working rows. A group of 1 with rows
        copies a whole matrix, padded, for all positions; without rows it reads matrices where they are. A larger
        group reads one matrix, that of all, block by block.
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
