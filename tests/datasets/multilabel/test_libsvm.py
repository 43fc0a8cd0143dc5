"""Multilabel files in the format of LIBSVM."""

import gzip
import re

import pytest
import torch
from cases.multilabel_files import write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets.multilabel.libsvm import read_libsvm

VALUES = st.floats(-(2.0**100), 2.0**100, width=32)


def text_of(examples: list[tuple[list[int], dict[int, float]]], first_feature: int, first_label: int) -> str:
    lines = []
    for labels, features in examples:
        names = ",".join(str(label + first_label) for label in labels)
        lines.append(
            " ".join([names, *(f"{place + first_feature}:{value!r}" for place, value in sorted(features.items()))])
        )
    return "\n".join(lines) + "\n"


EXAMPLES = st.tuples(
    st.lists(st.integers(0, 3), max_size=4, unique=True), st.dictionaries(st.integers(0, 5), VALUES, max_size=4)
).filter(lambda example: example[0] or example[1])


@examples(60)
@given(
    examples=st.lists(EXAMPLES, min_size=1, max_size=4),
    first_feature=st.integers(0, 1),
    first_label=st.integers(0, 1),
    header=st.booleans(),
)
def test_what_was_written_is_read(tmp_path_factory, examples, first_feature, first_label, header):
    text = text_of(examples, first_feature, first_label)
    if header:
        text = f"{len(examples)} 6 4\n" + text
    path = write(tmp_path_factory.getbasetemp() / "round.txt", text)
    sizes = (None, None) if header else (6, 4)
    table = read_libsvm(path, *sizes, first_feature=first_feature, first_label=first_label)
    features, labels = torch.zeros(len(examples), 6), torch.zeros(len(examples), 4)
    for row, (mine, numbers) in enumerate(examples):
        labels[row, mine] = 1
        for place, value in numbers.items():
            features[row, place] = value
    assert torch.equal(table.features.dense(), features)
    assert torch.equal(table.labels.dense(), labels)
    assert (table.feature_names[0], table.label_names[-1]) == (str(first_feature), str(3 + first_label))


def test_comments_ends_and_compression_do_not_matter(tmp_path):
    path = tmp_path / "a.gz"
    text = "# of mine, qid:1\r\n0 1:1\r\n1\r\n\r\n\n"
    for other in (
        *(text, text.replace("\r\n", "\r"), text.replace("\r\n", "\n"), text.rstrip(), "\ufeff" + text),
        *(text.replace(" ", "\t"), text.replace("1:1", "1:1 \t").replace("\n\n", "\n \t\n")),
    ):
        for packed in (False, True):
            path.write_bytes(gzip.compress(other.encode()) if packed else other.encode())
            table = read_libsvm(path, 2, 2)
            assert table.features.dense().tolist() == [[1, 0], [0, 0]]
            assert table.labels.dense().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0 1:1\n0 4:1\n", 2),
        ("0 0:1\n", 1),
        ("3 1:1\n", 1),
        ("0 1:1\n1 2:1 2:1\n", 2),
        ("1,1 2:1\n", 1),
        ("1,,2 2:1\n", 1),
        ("-1 2:1\n", 1),
        ("1 2:1 1:1\n", 1),
        ("0 1:1\n0 4294967297:1\n", 2),
        ("1 qid:1\n", 1),
        ("1 2:nan\n", 1),
        ("1 2\n", 1),
        ("1 2:1\n\n1 2:1\n", 2),
        ("2 3 3\n0 1:1\n", 1),
        ("1 4 3\n0 1:1\n", 1),
    ],
)
def test_errors_name_file_and_line(text, line, tmp_path):
    path = write(tmp_path / "bad.txt", text)
    with pytest.raises(ValueError, match=re.escape(f"{path}, line {line}:")):
        read_libsvm(path, 3, 3)


@pytest.mark.parametrize("wrong", [{"num_features": None}, {"num_labels": 2.0}, {"first_label": 2}])
def test_arguments_are_checked(wrong, tmp_path):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        read_libsvm(write(tmp_path / "a.txt", "0 1:1\n"), **{"num_features": 3, "num_labels": 3, **wrong})
