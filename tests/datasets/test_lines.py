"""Encodings, archives, and the spelling of numbers."""

import bz2
import io
import lzma
import zipfile

import pytest

from torchssvm.datasets.lines import number, read_lines, whole


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding(coding, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("Köln O\r\nb O\n".encode(coding))
    assert read_lines(path) == ["Köln O", "b O", ""]


def test_utf_16_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("ab".encode("utf-16")[:-1])
    with pytest.raises(ValueError, match=r"text.txt begins as UTF-16"):
        read_lines(path)


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("text.txt", content)
    return file.getvalue()


@pytest.mark.parametrize(("name", "pack"), [("zip", zipped), ("xz", lzma.compress), ("bzip2", bz2.compress)])
def test_archives_are_named(name, pack, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(pack(b"a O\n"))
    with pytest.raises(ValueError, match=name):
        read_lines(path)


@pytest.mark.parametrize("token", ["1_0", "٤", "１", "²", "", "x", "nan", "inf", "1e39", "1.5.1"])
def test_what_is_no_number_of_a_data_file(token):
    assert number(token) is None
    assert whole(token) is None


def test_numbers():
    assert [number(token) for token in ("+1", "-.5", "1e3", "07")] == [1.0, -0.5, 1000.0, 7.0]
    assert [whole(token) for token in ("0", "012", "-1", "1.0", "9" * 5000)] == [0, 12, None, None, None]
