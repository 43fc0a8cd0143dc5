"""Build a cache of superpixel graphs, optionally in worker processes; an interrupted build is continued."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchssvm.core.files import write_text

from .graph_cache import MANIFEST, PLACE_COLUMNS, PLACES, GraphCache, StaleCache, is_changed, key_of, layout
from .graph_cache_words import drop_words, make_words, read_words, words_are_of
from .masks import MaskRule
from .region_features import GraphSettings, RegionGraph, region_graph
from .segmentation_files import Pair, read_pair, stamps
from .superpixels import scikit_image
from .visual_words import Vocabulary

_BUILDING = "building.json"
_COMMIT = 16  # images between two commits
_AHEAD = 4  # images that wait for each worker


def open_cache(
    folder: Path,
    pairs: Sequence[Pair],
    settings: GraphSettings,
    *,
    rule: MaskRule,
    skip: bool = False,
    rebuild: bool = False,
    workers: int = 0,
    show: bool = True,
) -> GraphCache:
    """Open the cache of these images, training set first; build it if needed, continuing an interrupted build.

    A second process that needs the same cache waits. ``skip`` leaves unusable images out instead of raising, and
    ``rebuild`` replaces a cache that is damaged or was made for anything else.

    Raises:
        StaleCache: The folder has a cache that is damaged, or made for other images or settings.
        ValueError: An image is unusable.
    """
    key = key_of(pairs, settings, rule)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if (folder / MANIFEST).exists():
            try:
                cache = GraphCache(folder)
                cache.check(pairs, key)
                return _usable(cache, skip)
            except StaleCache as error:
                if not rebuild:
                    raise StaleCache(f"{error}. Give rebuild=True to make it anew, or name another folder") from error
                (folder / MANIFEST).unlink()
        _build(folder, pairs, settings, rule, key, skip, workers, show)
        return _usable(GraphCache(folder), skip)


def _usable(cache: GraphCache, skip: bool) -> GraphCache:
    if cache.skipped and not skip:
        name, reason = next(iter(cache.skipped.items()))
        raise ValueError(
            f"{len(cache.skipped)} images were left out of the cache {cache.folder}, such as {name}: {reason}"
        )
    return cache


def _build(
    folder: Path,
    pairs: Sequence[Pair],
    settings: GraphSettings,
    rule: MaskRule,
    key: dict[str, Any],
    skip: bool,
    workers: int,
    show: bool,
) -> None:
    scikit_image()  # fail before the long work on vocabularies
    from tqdm import tqdm

    files = {**layout(settings), PLACES: ("<i8", (PLACE_COLUMNS,), -1)}
    done, skipped = _resumed(folder, pairs, key, files)
    with _mapping(workers) as mapping:
        vocabulary = read_words(folder)
        if vocabulary is None:
            vocabulary = make_words(folder, pairs, settings, rule, skip, mapping, show)
        write_text(folder / _BUILDING, json.dumps({"key": key, "skipped": skipped}))
        ends = np.zeros(3, np.int64) if not len(done) else done[-1, :3].copy()
        arrays = {
            name: GrowingArray(folder / f"{name}.npy", dtype, row, len(done) if end < 0 else int(ends[end]))
            for name, (dtype, row, end) in files.items()
        }

        def commit() -> None:
            # The places come last: an image that has one has all its numbers on the disk.
            for array in arrays.values():
                array.commit()

        try:
            work = partial(_graph, settings=settings, vocabulary=vocabulary, rule=rule)
            results = mapping(work, pairs[len(done) :])
            bar = tqdm(results, "superpixel graphs", len(pairs) - len(done), disable=not show)
            for number, made in enumerate(bar, len(done)):
                if made.reason:
                    if not skip:
                        raise ValueError(f"{made.reason} (on_bad='skip' goes on without such images)")
                    skipped[pairs[number].name] = made.reason
                    write_text(folder / _BUILDING, json.dumps({"key": key, "skipped": skipped}))
                shape = (0, 0)
                if made.graph is not None and made.image is not None and made.mask is not None:
                    shape = made.mask.shape
                    rows = made.graph._asdict() | {"images": made.image.reshape(-1, 3), "masks": made.mask.ravel()}
                    rows["regions"] = made.graph.regions.ravel()
                    for name in layout(settings):
                        arrays[name].append(rows[name])
                    ends += len(made.graph.nodes), len(made.graph.edges), made.mask.size
                arrays[PLACES].append(np.array([[*ends, *shape, *made.stamps]]))
                if number % _COMMIT == 0:
                    commit()
        finally:
            commit()
            for array in arrays.values():
                array.close()
    write_text(folder / MANIFEST, json.dumps({"key": key, "skipped": skipped}))
    (folder / _BUILDING).unlink()


def _resumed(
    folder: Path, pairs: Sequence[Pair], key: dict[str, Any], files: dict[str, Any]
) -> tuple[np.ndarray, dict]:
    """The progress of an earlier build: the places of finished images, and why others were left out."""
    nothing: tuple[np.ndarray, dict] = (np.zeros((0, PLACE_COLUMNS), np.int64), {})
    try:
        began = json.loads((folder / _BUILDING).read_text(encoding="utf-8"))
        fresh = began["key"] == key and words_are_of(folder, pairs)
    except (OSError, ValueError, KeyError):
        fresh = False
    if not fresh:
        (folder / _BUILDING).unlink(missing_ok=True)
        drop_words(folder)
        return nothing
    rows = rows_in(folder / f"{PLACES}.npy", "<i8", (PLACE_COLUMNS,))
    if not rows:
        return nothing
    places = np.fromfile(folder / f"{PLACES}.npy", "<i8", offset=128)[: rows * PLACE_COLUMNS].reshape(rows, -1)
    rows_by_end = {
        end: [rows_in(folder / f"{n}.npy", d, r) for n, (d, r, e) in files.items() if e == end] for end in range(3)
    }
    whole = np.logical_and.reduce([places[:, end] <= min(counts) for end, counts in rows_by_end.items()])
    same = [bool(ok) and not is_changed(pair, row) for ok, pair, row in zip(whole, pairs, places, strict=False)]
    count = same.index(False) if False in same else len(same)
    kept = {pair.name for pair in pairs[:count]}
    return places[:count], {name: reason for name, reason in began["skipped"].items() if name in kept}


class _Made(NamedTuple):
    """The result of a worker: a graph, or the reason why there is none."""

    stamps: tuple[int, ...]
    reason: str = ""
    graph: RegionGraph | None = None
    image: np.ndarray | None = None
    mask: np.ndarray | None = None


def _graph(pair: Pair, settings: GraphSettings, vocabulary: Vocabulary, rule: MaskRule) -> _Made:
    now = stamps(pair)
    try:
        image, mask = read_pair(pair, rule)
        return _Made(now, "", region_graph(image, mask, settings, vocabulary), image, mask.filled(False))
    except ValueError as error:
        return _Made(now, f"{pair.name}: {error}")


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """An ordered ``map`` in this process, or in ``workers`` others, which compute a few images ahead."""
    if workers == 0:
        yield map
        return
    # Spawned: a forked process would inherit locks of torch's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:

        def mapping(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            waiting: deque[Future[Any]] = deque()
            for item in items:
                if len(waiting) == _AHEAD * workers:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.popleft().result()

        try:
            yield mapping
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder for one process, where the system has such locks; a killed process frees its lock."""
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows
        yield
        return
    with open(folder / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
