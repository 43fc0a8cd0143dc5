"""Files that are no data, or not the data that they should be, are refused with their name and the line."""

import errno
import gzip
import hashlib
import io
import os
import tracemalloc

import pytest

from torchssvm.datasets import files as files_module
from torchssvm.datasets import read_columns, read_conllu
from torchssvm.datasets.files import fetch, find
from torchssvm.datasets.lines import read_content
from torchssvm.datasets.multilabel.arff import read_arff
from torchssvm.datasets.multilabel.libsvm import read_libsvm
from torchssvm.datasets.text.alignment_text import read_aligned, read_unaligned

COLUMNS = "He PRP B-NP\nruns VBZ B-VP\n\nShe PRP B-NP\n"


def written(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("read", "content", "line"),
    [
        (read_columns, "He PRP B-NP\nru\0ns VBZ B-VP\n", 2),
        (read_columns, COLUMNS.encode("utf-16-le"), 1),
        (read_conllu, "1\tH\0e\t_\tPRON\t_\t_\t0\troot\t_\t_\n\n", 1),
        (read_arff, "@relation r\n@attribute a\0 numeric\n@data\n1\n", 2),
        (lambda path: read_libsvm(path, 3, 3), "0 1:1\n0 \x001:1\n", 2),
        (lambda path: read_unaligned(path, path), "le chat\nle\0 chien\n", 2),
        (lambda path: read_aligned(path, path, path), "<s snum=0001> le\0 chat </s>\n", 1),
    ],
)
def test_nul_bytes(tmp_path, read, content, line):
    file = written(tmp_path / "data.txt", content)
    with pytest.raises(ValueError, match=f"data.txt, line {line}"):
        read(file)


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(64):
            file.write(bytes(2**20))
    limit = 2**20
    tracemalloc.start()
    try:
        for read in (
            read_content,
            read_columns,
            read_conllu,
            read_arff,
            lambda path, limit: read_libsvm(path, 3, 3, limit=limit),
        ):
            with pytest.raises(ValueError, match=f"limit={limit}"):
                read(bomb, limit=limit)
        assert tracemalloc.get_traced_memory()[1] < 8 * limit
    finally:
        tracemalloc.stop()
    assert len(read_content(bomb, 2**26)) == 2**26
    assert len(read_columns(written(tmp_path / "plain.txt", COLUMNS), limit=1)) == 2  # nothing is unpacked


@pytest.mark.parametrize(
    "path", ["../../x", "a/../../x", "/etc/passwd", "..", "", "a\0b", "C:/x", "..\\x", "\\\\host\\x"]
)
def test_paths_that_leave_the_folder(tmp_path, monkeypatch, path):
    monkeypatch.setattr(files_module, "_download", lambda *_: pytest.fail("it was downloaded"))
    (tmp_path / "data").mkdir()
    for call in (
        lambda: find(path, "page", tmp_path / "data"),
        lambda: fetch(path, "http://x", "0" * 64, "page", tmp_path / "data"),
    ):
        with pytest.raises(ValueError, match="path="):
            call()


def test_a_download_that_is_not_written_leaves_nothing(tmp_path, monkeypatch):
    content = b"published"
    monkeypatch.setattr(files_module.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(content))
    arguments = "conll/x.gz", "http://x", hashlib.sha256(content).hexdigest(), "page", tmp_path
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space left on device")))
        with pytest.raises(FileNotFoundError, match="http://x"):
            fetch(*arguments)
    assert list((tmp_path / "conll").iterdir()) == []
    assert fetch(*arguments).read_bytes() == content


def test_downloads_do_not_follow_links_out_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_download", lambda *_: pytest.fail("it was downloaded"))
    (tmp_path / "data").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "data" / "conll").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match=r"path='conll/x.gz'"):
        fetch("conll/x.gz", "http://x", "0" * 64, "page", tmp_path / "data")
    assert not list((tmp_path / "outside").iterdir())
