"""ARFF files and the XML files that name their labels."""

import re

import numpy as np
import pytest
import torch
from cases.multilabel_files import DENSE, SPARSE, XML, Column, arff_text, write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets.multilabel.arff import read_arff
from torchssvm.datasets.multilabel.mulan import read_labels, read_mulan

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32).map(repr) | st.integers(-9, 9).map(str)
NAMES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=6)


@pytest.mark.parametrize("text", [SPARSE, DENSE], ids=["sparse", "dense"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", " \t\n", "\n\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_both_kinds_of_rows(text, newline, mark, tmp_path):
    arff = write(tmp_path / "songs.arff", mark + text.replace("\n", newline).rstrip())
    table = read_mulan(arff, write(tmp_path / "songs.xml", XML))
    assert table.feature_names == ("tempo", "it's 100% pitch", "drums")
    assert table.label_names == ("sad", "loud", "very loud")  # the order of the XML file
    assert table.features.dense().tolist() == [[0.5, 0, 0], [0, 0, 0], [0, -20, 1]]
    assert table.labels.dense().tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert table.features.indptr.tolist() == [0, 1, 1, 3]
    assert table.labels.indices.tolist() == [0, 1, 2]
    assert table.source == str(arff)


def test_what_a_sparse_row_leaves_out_is_the_first_nominal_value(tmp_path):
    text = "@attribute a {1,0}\n@attribute b {-1, 2.5}\n@attribute c numeric\n@data\n{2 7}\n{0 0,1 2.5}\n"
    table = read_arff(write(tmp_path / "a.arff", text))
    assert table.rows.dense().tolist() == [[1, 1, 0, 7], [0, 0, 1, 0]]
    assert [attribute.columns for attribute in table.attributes] == [("a",), ("b=-1", "b=2.5"), ("c",)]
    assert table.lines == [5, 6]


@pytest.mark.parametrize("sparse", [False, True])
def test_nominal_features_are_indicators(sparse, tmp_path):
    colours, codes = ["red", "'light green'", "blue"], ["3", "1", "2"]
    columns = [Column("colour", colours), Column("label", ["0", "1"]), Column("code", codes), Column("x", None)]
    rows = [["blue", "1", "1", "0.5"], ["red", "0", "3", "0"], ["'light green'", "1", "2", "7"]]
    text = arff_text([columns[1], columns[0], *columns[2:]], [[row[1], row[0], *row[2:]] for row in rows], sparse)
    table = read_mulan(write(tmp_path / "a.arff", text), 1)
    names = ("colour=red", "colour=light green", "colour=blue", "code=3", "code=1", "code=2", "x")
    assert table.feature_names == names
    assert table.features.dense().tolist() == [[0, 0, 1, 0, 1, 0, 0.5], [1, 0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 1, 7]]
    assert table.labels.dense().tolist() == [[1], [0], [1]]
    with pytest.raises(ValueError, match="line 3"):
        read_mulan(tmp_path / "a.arff", 2)


@st.composite
def tables(draw):
    """Attributes, and values as they are spelt."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    kinds = st.none() | st.lists(NUMBERS, min_size=1, max_size=3, unique=True)
    columns = [Column(name, draw(kinds)) for name in names]
    row = st.tuples(*(NUMBERS if c.values is None else st.sampled_from(c.values) for c in columns)).map(list)
    return columns, draw(st.lists(row, min_size=1, max_size=4))


@examples(60)
@given(table=tables(), sparse=st.booleans())
def test_what_was_written_is_read(tmp_path_factory, table, sparse):
    columns, rows = table
    path = write(tmp_path_factory.getbasetemp() / "round.arff", arff_text(columns, rows, sparse))
    result = read_arff(path)
    assert [attribute.name for attribute in result.attributes] == [column.name for column in columns]
    wanted = []
    for place, (_, values) in enumerate(columns):
        entries = [row[place] for row in rows]
        if values is None or {float(value) for value in values} <= {0.0, 1.0}:
            wanted.append([float(value) for value in entries])
        else:
            wanted += [[float(one == value) for one in entries] for value in values]
    assert torch.equal(result.rows.dense(), torch.tensor(np.array(wanted).astype(np.float32)).T)
    assert bool((result.rows.values != 0).all())


HEAD = "@relation r\n@attribute a numeric\n@attribute b {0,1}\n"
BAD = [
    ("@relation r\n@attribute a string\n", 2),
    ("@attribute 'a b numeric\n", 1),
    ("@attribute a {red,,green}\n", 1),
    ("@attribute a {red,red}\n", 1),
    ("@attribute a {red,green}\n@data\ngreen\nblue\n", 4),
    (HEAD + "@attribute a real\n@data\n0,0,0\n", 4),
    (HEAD + "0.5,1\n", 4),
    ("@data\n1\n", 1),
    (HEAD + "@data\n0,0\n0.5\n", 6),
    (HEAD + "@data\n?,1\n", 5),
    (HEAD + "@data\n1e39,1\n", 5),
    (HEAD + "@data\n1_0,1\n", 5),
    (HEAD + "@data\n1,2\n", 5),
    (HEAD + "@data\n{0 1}\n{1 red}\n", 6),
    (HEAD + "@data\n{2 1}\n", 5),
    (HEAD + "@data\n{-1 1}\n", 5),
    (HEAD + "@data\n{0}\n", 5),
    (HEAD + "@data\n{1 1,0 2,1 1}\n", 5),
    (HEAD + "@data\n{0 1\n", 5),
    (HEAD + "@data\n{0 '1}\n", 5),
]
BAD_XML = [
    ("<labels>\n<label name='a'>\n</labels>", 3),
    (HEAD, 1),
    ("<labels>\n<label name=''/></labels>", 2),
    ("<labels>\n<tag name='a'/></labels>", 2),
    ("<label name='a'/>", 1),
    ("<labels><label name='a'/>\n<label name='a'/></labels>", 2),
]


@pytest.mark.parametrize(
    ("read", "text", "line"), [*((read_arff, *row) for row in BAD), *((read_labels, *row) for row in BAD_XML)]
)
def test_errors_name_file_and_line(read, text, line, tmp_path):
    path = write(tmp_path / "bad", text)
    with pytest.raises(ValueError, match=re.escape(f"{path}, line {line}:")):
        read(path)


@pytest.mark.parametrize(
    ("labels", "rows", "place"),
    [
        ("<labels>\n<label name='c'/></labels>", "0,0", r"\.xml, line 2"),
        ("<labels><label name='a'/><label name='b'/></labels>", "0,0", "feature"),
        ("<labels><label name='a'/></labels>", "0,0\n2,1", r"\.arff, line 6"),
    ],
)
def test_files_that_do_not_fit(labels, rows, place, tmp_path):
    arff = write(tmp_path / "a.arff", HEAD + "@data\n" + rows)
    with pytest.raises(ValueError, match=place):
        read_mulan(arff, write(tmp_path / "a.xml", labels))


def test_other_encodings_of_xml(tmp_path):
    path = tmp_path / "latin.xml"
    path.write_bytes("<?xml version='1.0' encoding='latin-1'?><labels><label name='café'/></labels>".encode("latin-1"))
    assert read_labels(path)[0].name == "café"


MEKA = """\
@relation 'Music: -split-number 2 -C {}'
@attribute a numeric
@attribute b {{0,1}}
@attribute c {{0,1}}
@data
0.5,1,0
1,0,1
"""


@pytest.mark.parametrize(("labels", "relation"), [(None, -2), (-2, 1)])  # the argument goes before the relation
def test_the_number_of_labels_as_in_meka(labels, relation, tmp_path):
    table = read_mulan(write(tmp_path / "a.arff", MEKA.format(relation)), labels)
    assert (table.feature_names, table.label_names) == (("a",), ("b", "c"))
    assert table.labels.dense().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("name", ["songs-train.arff", "songs.arff", "songs-test.arff"])
def test_the_xml_file_beside(name, tmp_path):
    write(tmp_path / "songs.xml", XML)
    assert read_mulan(write(tmp_path / name, SPARSE)).label_names == ("sad", "loud", "very loud")


def test_labels_that_nothing_tells(tmp_path):
    arff = write(tmp_path / "songs-train.arff", SPARSE)
    with pytest.raises(ValueError, match="labels"):
        read_mulan(arff)
    for labels in (0, 6, -7):
        with pytest.raises(ValueError, match=f"labels={labels}"):
            read_mulan(arff, labels)
