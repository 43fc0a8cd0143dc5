"""An ``.npy`` file that grows by rows and can be truncated to a number of rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_HEADER = 128  # bytes: its length does not depend on the number of rows
_MAGIC = b"\x93NUMPY\x01\x00"


class GrowingArray:
    """Appends rows to a file that ``numpy.load`` reads, memory-mapped or not, after each :meth:`commit`.

    A file keeps its first ``rows``, of the shape ``trailing`` each; it is new where they are 0. ValueError if it has
    fewer.
    """

    def __init__(self, path: Path, dtype: str, trailing: Sequence[int], rows: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.trailing = tuple(trailing)
        self.rows = rows
        self._row = self.dtype.itemsize * int(np.prod(self.trailing, dtype=np.int64))
        if not rows:
            path.unlink(missing_ok=True)  # another process may have mapped it
        self._file = open(path, "r+b" if rows else "w+b")  # noqa: SIM115  # closed by close()
        if os.fstat(self._file.fileno()).st_size < (_HEADER + rows * self._row if rows else 0):
            self._file.close()
            raise ValueError(f"{path} has fewer than {rows} rows")
        self._file.truncate(_HEADER + rows * self._row)
        self._file.seek(0, os.SEEK_END)

    def append(self, rows: np.ndarray) -> None:
        """Add rows ``[R, *trailing]``."""
        if rows.shape[1:] != self.trailing:
            raise ValueError(f"rows must be [R, {', '.join(map(str, self.trailing))}], got {list(rows.shape)}")
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)
        self.rows += len(rows)

    def commit(self) -> None:
        """Write the number of rows into the header, and flush the file to the disk."""
        shape = (self.rows, *self.trailing)
        text = repr({"descr": self.dtype.str, "fortran_order": False, "shape": shape})
        room = _HEADER - len(_MAGIC) - 2
        self._file.seek(0)
        self._file.write(_MAGIC + room.to_bytes(2, "little") + text.encode().ljust(room - 1) + b"\n")
        self._file.seek(0, os.SEEK_END)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; rows that were not committed do not count."""
        self._file.close()


def rows_in(path: Path, dtype: str, trailing: Sequence[int]) -> int:
    """Number of whole rows in a file of :class:`GrowingArray`, committed or not; 0 if there is no file."""
    row = np.dtype(dtype).itemsize * int(np.prod(trailing, dtype=np.int64))
    return max(path.stat().st_size - _HEADER, 0) // row if path.exists() else 0
