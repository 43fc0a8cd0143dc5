"""Data files: under ``TORCHSSVM_DATA``, or in a cache folder that downloads from the official page fill."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from torchssvm.core.files import whole_file

VARIABLE = "TORCHSSVM_DATA"
_TIMEOUT = 30.0  # seconds without an answer


def cache_folder() -> Path:
    """``torchssvm`` in the user's cache folder (``XDG_CACHE_HOME``, or ``~/.cache``)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torchssvm"


def folders(given: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders to search, in order: ``root`` if given, else ``TORCHSSVM_DATA`` and the cache."""
    if given is not None:
        return [Path(given)]
    named = os.environ.get(VARIABLE)
    return ([Path(named)] if named else []) + [cache_folder()]


def find(path: str, page: str, root: str | os.PathLike[str] | None = None) -> Path:
    """A file or folder that must exist, ``path`` below one of :func:`folders`, e.g. ``"hansards/test/test.e"``.

    Raises:
        FileNotFoundError: It is in none of the folders; the message says what to fetch from ``page`` and where to put
            it.
        ValueError: ``path`` leads out of the folders.
    """
    _check_inside(path)
    places = [folder / path for folder in folders(root)]
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(
        f"{path} is not in {' or '.join(str(place.parent) for place in places)}: fetch it from {page} and put it "
        f"there, or below a folder that the environment variable {VARIABLE} names"
    )


def fetch(path: str, url: str, sha256: str, page: str, root: str | os.PathLike[str] | None = None) -> Path:
    """A file with a known checksum, downloaded if it is missing into the cache (or into ``root``, if given).

    Every read checks the ``sha256`` of the published file. ``page`` is the official one, for the messages.

    Raises:
        FileNotFoundError: It is missing and cannot be downloaded; the message says where to put it.
        RuntimeError: The file is not the published one.
        ValueError: ``path`` leads out of the folders, or a download would, by a symbolic link.
    """
    return _checked(path, url, lambda: _download(url), _digest, sha256, page, root)


def fetch_texts(
    folder: str, sha256: Mapping[str, str], url: str, page: str, root: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Texts with known checksums, members of the zip file at ``url``: in ``folder``, or unpacked from a download.

    Args:
        sha256: By name, the checksum of the text without carriage returns, as copies end lines in other ways.

    Raises:
        FileNotFoundError, RuntimeError, ValueError: As in :func:`fetch`.
    """

    @functools.cache
    def packed() -> bytes:
        return _download(url)

    def unpack(name: str) -> bytes:
        try:
            with zipfile.ZipFile(io.BytesIO(packed())) as archive:
                return archive.read(name)
        except (KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise RuntimeError(f"{url} is no zip file with {name} in it: {error}") from error

    def digest(content: bytes) -> str:
        return _digest(content.replace(b"\r", b""))

    return [
        _checked(f"{folder}/{name}", f"{url}, {name}", functools.partial(unpack, name), digest, digest_of, page, root)
        for name, digest_of in sha256.items()
    ]


def _checked(
    path: str,
    source: str,
    download: Callable[[], bytes],
    digest: Callable[[bytes], str],
    sha256: str,
    page: str,
    root: str | os.PathLike[str] | None,
) -> Path:
    try:
        place = find(path, page, root)
    except FileNotFoundError as missing:
        folder = folders(root)[-1]
        place = folder / path
        if not place.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"path={path!r} leads out of {folder} by a symbolic link, to {place.resolve()}: put the file there "
                "yourself, or remove the link"
            ) from missing
        try:
            content = download()
            if (checksum := digest(content)) != sha256:
                raise RuntimeError(
                    f"{source} gave another file than the published one: its SHA-256 is {checksum}, not {sha256}"
                ) from None
            with whole_file(place) as file:
                file.write(content)
        except OSError as error:
            raise FileNotFoundError(f"{missing} (downloading {source} failed: {error})") from error
        return place
    if (checksum := digest(place.read_bytes())) != sha256:
        raise RuntimeError(f"{place} is corrupt, or not the published file: its SHA-256 is {checksum}, not {sha256}")
    return place


def read_arrays(file: Path, *names: str) -> list[np.ndarray]:
    """Arrays of an ``.npz`` file, by name; nothing is unpickled. RuntimeError if it is corrupt, or lacks one."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            return [archive[name] for name in names]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RuntimeError(f"{file} is corrupt, or lacks one of the arrays {', '.join(names)}: {error}") from error


def _check_inside(path: str) -> None:
    """Raise ValueError for a path that is absolute or has ``..``."""
    parts = [part for system in (PurePosixPath, PureWindowsPath) for part in system(path).parts]
    anchored = any(system(path).anchor for system in (PurePosixPath, PureWindowsPath))
    if anchored or ".." in parts or "\0" in path or not parts:
        raise ValueError(f"path={path!r} must be a relative path below the data folder, without ..")


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
        return answer.read()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
