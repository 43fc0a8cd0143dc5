"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | os.PathLike[str], *, keep_previous: bool = False) -> Iterator[BinaryIO]:
    """A file to write in binary, which takes the place of ``path`` when the ``with`` block is done.

    It is written beside ``path``, flushed to the disk and then renamed: a process that is killed at any moment leaves
    the file that was there before or the new one. An error in the block leaves the file that was there before. What
    killed processes have left beside ``path`` is removed. A symbolic link stays one; permission bits are kept.

    Args:
        path: The file; its folder is made if there is none.
        keep_previous: Whether the file that was there before stays as :func:`previous`, which is replaced after
            ``path`` has been.

    Raises:
        IsADirectoryError: ``path`` or the name of the file before is a folder.
        FileNotFoundError: What was being written has been removed: another process writes to the same ``path``.
        OSError: The disk is full, or the folder cannot be written to.
    """
    path = Path(os.path.realpath(path))
    before = previous(path)
    for taken in (path, before) if keep_previous else (path,):
        if taken.exists() and not taken.is_file():
            raise IsADirectoryError(f"{taken} is no file, and cannot be replaced by one: give another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    partial, second = _beside(path), _beside(path)
    try:
        with open(partial, "xb") as file:
            if path.exists():
                os.chmod(partial, stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        kept = keep_previous and path.exists()
        if kept:
            _name_again(path, second)
        try:
            os.replace(partial, path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{partial} is gone: does another process write to {path} as well?") from error
        if kept:  # only now: until here the file before this one may have been the only whole one
            os.replace(second, before)
    finally:
        # A rename between two names of one file does nothing, and leaves both.
        for leftover in (partial, second):
            leftover.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` in UTF-8, whole or not at all; see :func:`whole_file`."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def previous(path: Path) -> Path:
    """Where the file before ``path`` is kept."""
    return path.with_name(path.name + ".previous")


def damage(path: Path) -> str | None:
    """What is wrong with a file that ``torch.save`` has written; None if its checksums are right.

    ``torch.load`` does not look at them.

    Raises:
        PermissionError: It cannot be opened.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except PermissionError:
        raise
    except Exception as error:  # whatever the reader meets in a damaged file
        return f"{path} is damaged, or no checkpoint: {error}"
    return None if wrong is None else f"{path} is damaged: the checksum of {wrong} is another"


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes have left of their writes to ``path``."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.partial")
    for found in path.parent.iterdir():
        if name.fullmatch(found.name):
            found.unlink(missing_ok=True)


def _name_again(path: Path, second: Path) -> None:
    """Give the file a second name; a copy, where the file system has no hard links."""
    try:
        os.link(path, second)
    except OSError:
        shutil.copy2(path, second)
        with open(second, "rb+") as file:
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Bring renames to the disk, where the system lets a folder be opened."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(opened)
    except OSError:  # not every file system can
        pass
    finally:
        os.close(opened)
