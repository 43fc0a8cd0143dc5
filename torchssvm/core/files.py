"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from torchssvm.core.packages import warn


@contextmanager
def whole_file(path: str | os.PathLike[str], *, keep_previous: bool = False) -> Iterator[BinaryIO]:
    """A binary file that replaces ``path`` at the end of the ``with`` block.

    It is written beside ``path``, flushed to the disk and renamed: a process killed at any moment leaves either the old
    file or the new one. An error in the block leaves the old file. Leftovers of killed processes are removed. Symbolic
    links and permission bits are kept.

    Args:
        path: The file; its folder is created if it is missing.
        keep_previous: Whether to keep the old file under the name :func:`previous`, which is replaced last.

    Raises:
        IsADirectoryError: ``path`` or the name for the old file is a folder.
        FileNotFoundError: The partial file has been removed: another process writes to the same ``path``.
        OSError: The disk is full, or the folder is not writable.
    """
    path = Path(os.path.realpath(path))
    before = previous(path)
    for taken in (path, before) if keep_previous else (path,):
        if taken.exists() and not taken.is_file():
            raise IsADirectoryError(f"{taken} is a folder: give another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.partial")  # of killed processes
    for file_path in path.parent.iterdir():
        if left.fullmatch(file_path.name):
            file_path.unlink(missing_ok=True)
    partial, second = _beside(path), _beside(path)
    try:
        with open(partial, "xb") as file:
            if path.exists():
                os.chmod(partial, stat.S_IMODE(path.stat().st_mode))
            try:
                yield file
            except RuntimeError as error:  # torch.save ends its archive by one that hides why it could not write
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
            file.flush()
            os.fsync(file.fileno())
        kept = keep_previous and path.exists()
        if kept:
            _name_again(path, second)
        try:
            os.replace(partial, path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{partial} is gone: does another process write to {path} as well?") from error
        if kept:  # only now: until here `before` may have been the only complete file
            os.replace(second, before)
    finally:
        # A rename between two names of the same file does nothing and leaves both.
        for leftover in (partial, second):
            leftover.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` in UTF-8, completely or not at all; see :func:`whole_file`."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def previous(path: Path) -> Path:
    """The path under which the old file is kept."""
    return path.with_name(path.name + ".previous")


def damage(path: Path) -> str | None:
    """A description of the damage of a file from ``torch.save``, or None; ``torch.load`` verifies no checksums."""
    if not path.exists():
        return f"there is no checkpoint {path}"
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except PermissionError:
        raise
    except Exception as error:  # a damaged file can raise anything
        return f"{path} is damaged, or not a checkpoint: {error}"
    return None if wrong is None else f"{path} is damaged: the checksum of {wrong} is wrong"


def whole_or_previous(path: Path) -> Path:
    """The file, or the old one, with a warning, if only that is whole.

    Raises:
        FileNotFoundError, ValueError: The file is missing, or damaged, and the old one is not whole.
    """
    before = previous(path)
    if (wrong := damage(path)) is None:
        return path
    if (too := damage(before)) is None:
        warn(f"{wrong}: loaded the checkpoint before it, {before}")
        return before
    kind = ValueError if path.exists() or before.exists() else FileNotFoundError
    raise kind(f"{wrong}, and {too}: start anew, or load another file")


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")


def _name_again(path: Path, second: Path) -> None:
    """Give the file a second name, or copy it if the file system has no hard links."""
    try:
        os.link(path, second)
    except OSError:
        shutil.copy2(path, second)
        with open(second, "rb+") as file:
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush renames to the disk, where the file system can do so for a folder."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
