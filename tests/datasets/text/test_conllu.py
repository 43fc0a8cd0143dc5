"""Treebanks: the reader, the features of arcs, attachment scores, and the example on a treebank of a little grammar."""

import gzip
import itertools
import json
import random
import zlib
from pathlib import Path

import pytest
import torch
from cases.treebanks import treebank
from torch.utils.data import DataLoader

from torchssvm import Arborescence, LinearArcs, Potentials, solve
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.datasets import CoNLLU, Sentence, arc_columns, attachment, read_conllu, write_conllu
from torchssvm.datasets.text.arc_drawing import draw_arcs
from torchssvm.deployment import load_head, save_model
from torchssvm.structures.arborescence import Projective

EXAMPLE = Path(__file__).parents[3] / "examples" / "dependency.py"

VAMONOS = """\
# sent_id = 1
# text = Vámonos al mar azul.
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
5.1\tque\t_\t_\t_\t_\t_\t_\t1:x\t_
6\tazul\tazul\tADJ\t_\t_\t5\tamod\t_\t_
7\t.\t.\tPUNCT\t_\t_\t1\tpunct\t_\t_

# sent_id = 2
1\tSí\tsí\t_\tinterj\t_\t0\troot\t_\t_
2\t¡!\t!\t_\t_\t_\t1\tpunct\t_\t_

"""

CROSSING = """\
1\ta\ta\tX\t_\t_\t3\tdep\t_\t_
2\tb\tb\tX\t_\t_\t4\tdep\t_\t_
3\tc\tc\tX\t_\t_\t0\tdep\t_\t_
4\td\td\tX\t_\t_\t3\tdep\t_\t_

"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="bank.conllu"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def rows(*heads):
    return "".join(f"{t}\tw{t}\t_\tX\t_\t_\t{head}\t_\t_\t_\n" for t, head in enumerate(heads, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: "\n\n" + text.replace("\n\n", "\n\n\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: " \n" + text.replace("\n\n", "\n \t\n# a block of comments\n\n\n") + "# the end",
        lambda text: text.replace("\t", "  "),
        lambda text: text.replace("_\n", "_\t\n").replace("_\n", "_ \n", 1),
    ],
)
def test_words_heads_and_tags_are_read(write, change):
    first, second = read_conllu(write(change(VAMONOS)))
    assert first.words == ("Vamos", "nos", "a", "el", "mar", "azul", ".")
    assert first.tags == ("VERB", "PRON", "ADP", "DET", "NOUN", "ADJ", "PUNCT")
    assert first.heads == (0, 1, 5, 5, 1, 5, 1)
    assert first.relations == ("root", "obj", "case", "det", "obl", "amod", "punct")
    assert first.projective
    assert first.punctuation == (False,) * 6 + (True,)
    assert second.words == ("Sí", "¡!")
    assert second.tags == ("interj", "_")
    assert second.punctuation == (False, True)  # no tag, and nothing but punctuation
    assert second.heads == (0, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# nothing\n\n", 1),
        (rows(0) + "\n# a\n1-2\tx" + "\t_" * 8 + "\n\n", 4),
        (rows(0) + "2\tw\t_\tX\t_\t_\t1\t_\t_\n", 2),
        (rows(0, 1, 1).replace("\t", " ").replace("w2", "w 2"), 2),
        (rows(0).replace("w1", "w  1"), 1),
        ("\t" + rows(0).replace("_\t_\n", "_\n"), 1),
        ("7-3\tx" + "\t_" * 8 + "\n" + rows(0), 1),
        (rows(0) + "5.1\tx" + "\t_" * 8 + "\n", 2),
        (rows(0, "9" * 5000), 2),
        (rows("_"), 1),
        (rows(0, "-1"), 2),
        (rows(0) + "\n" + rows(0, 1, 7), 5),
        (rows(2, 1), 1),
        (rows(0) + "\n" + rows(0, 1, 0), 3),
        (rows(0, 3, 4, 2), 2),
        (rows(3, 0, 4, 3), 1),
        (rows(0, 1).replace("2\tw2", "3\tw3"), 2),
        (rows(0).replace("w1", ""), 1),
        (rows(0).encode() + b"\n2\tcaf\xe9\n", 3),
    ],
)
def test_errors_name_file_and_line(write, text, line):
    with pytest.raises(ValueError, match=rf"bank.conllu, line {line}:"):
        read_conllu(write(text))


def test_sentences_with_several_roots(write):
    path = write(rows(2, 0) + "\n" + rows(0, 0, 2))
    assert [s.heads for s in read_conllu(path, single_root=False)] == [(2, 0), (0, 0, 2)]
    bank = CoNLLU(path, num_features=500, single_root=False, skip_nonprojective=True)
    batch = bank.collate([bank[0], bank[1]])
    potentials = LinearArcs(500)(batch.x, batch.lengths)
    assert torch.equal(Arborescence().check_target(batch.y, potentials), batch.y)
    with pytest.raises(ValueError, match=r"bank.conllu, line 4"):
        CoNLLU(path)
    with pytest.raises(ValueError, match=r"bank.conllu, line 1"):
        read_conllu(write(rows(2, 1)), single_root=False)


def test_packed_files_are_read(write):
    text = rows(0, 1)
    assert read_conllu(write(gzip.compress(text.encode()))) == read_conllu(write(text))


def texts_of(words, tags, head, token):
    """What the features of an arc say, written out from the paper's table; an independent account."""
    w, g = ["<root>", *words], ["<root>", *tags]
    around = ["<left>", *g, "<right>"]

    def before(i):
        return around[i]

    def after(i):
        return around[i + 2]

    hw, hg, tw, tg = w[head], g[head], w[token], g[token]
    anywhere = [
        f"head {hw} {hg}",
        f"head word {hw}",
        f"head tag {hg}",
        f"all {hw} {hg} {tw} {tg}",
        f"no head word {hg} {tw} {tg}",
        f"no head tag {hw} {tw} {tg}",
        f"no token word {hw} {hg} {tg}",
        f"no token tag {hw} {hg} {tw}",
        f"words {hw} {tw}",
        f"tags {hg} {tg}",
        f"+- {hg} {after(head)} {before(token)} {tg}",
        f"-- {before(head)} {hg} {before(token)} {tg}",
        f"++ {hg} {after(head)} {tg} {after(token)}",
        f"-+ {before(head)} {hg} {tg} {after(token)}",
    ]
    distance = abs(head - token)
    bucket = distance if distance <= 5 else "6-10" if distance <= 10 else "11-"
    side = "left" if head < token else "right"
    ends = [f"token {tw} {tg}", f"token word {tw}", f"token tag {tg}"]
    between = {g[i] for i in range(min(head, token) + 1, max(head, token))}
    return [
        *anywhere,
        *(f"{text} | {side} {bucket}" for text in (*anywhere, *ends)),
        *(f"between {hg} {tg} {tag} {side}" for tag in between),
    ]


def test_features_are_those_of_the_paper():
    """Columns and texts name each other one to one, over all arcs of sentences of all lengths."""
    draw = random.Random(0)
    column_of, text_of = {}, {}
    for length in (1, 2, 3, 7, 16):
        words = [draw.choice(["a", "b", "c", "dog"]) for _ in range(length)]
        tags = [draw.choice("NVD") for _ in range(length)]
        columns = arc_columns(words, tags, 2**31 - 1)
        assert columns.shape[:2] == (length, length + 1)
        assert columns.dtype == torch.int32
        for token, head in itertools.product(range(1, length + 1), range(length + 1)):
            listed = [c for c in columns[token - 1, head].tolist() if c >= 0]
            if head == token:
                assert listed == []
                continue
            expected = texts_of(words, tags, head, token)
            assert len(listed) == len(set(listed)) == len(expected)
            for text in expected:
                known = column_of.get(text)
                assert known is None or known in listed
            if len(expected) == 31:  # no tag between: the order is that of the account
                paired = pairs(listed, expected)
                for column, text in paired:
                    assert column_of.setdefault(text, column) == column
                    assert text_of.setdefault(column, text) == text
    assert len(column_of) == len(text_of) > 800


def pairs(columns, texts):
    """Both list 14 features; the columns have each next to the same one with the distance, then three of the token."""
    interleaved = [text for pair in zip(texts[:14], texts[14:28], strict=True) for text in pair]
    return list(zip(columns, interleaved + texts[28:], strict=True))


def test_columns_are_a_hash_that_does_not_change():
    """Another one would make trained weights worthless. Here it is in whole numbers of any size."""

    def hashed(template, *texts):
        code = template
        for text in texts:
            code = ((code ^ (zlib.crc32(text.encode()) + 1)) * 0x9E3779B97F4A7C15) % 2**64
            code ^= code >> 32
        return code % 1000

    columns = arc_columns(["the", "dog"], ["DET", "NOUN"], 1000)
    assert columns.shape == (2, 3, 33)
    assert int(columns.max()) < 1000
    listed = columns[0, 2].tolist()  # from dog to the
    assert listed[0] == hashed(1, "dog", "NOUN")
    assert listed[6] == hashed(4, "dog", "NOUN", "the", "DET")
    assert listed[26] == hashed(14, "DET", "NOUN", "DET", "NOUN")
    assert torch.equal(columns, arc_columns(("the", "dog"), ("DET", "NOUN"), 1000))


@pytest.mark.parametrize("keep", [True, False])
def test_batches(write, keep):
    bank = CoNLLU(write(VAMONOS), num_features=500, keep_features=keep)
    assert len(bank) == 2
    for _ in range(2):  # made, and kept
        items = [bank[0], bank[-1]]
        assert [item.index for item in items] == [0, 1]
        assert [item.y.tolist() for item in items] == [list(s.heads) for s in bank.sentences]
        for item, sentence in zip(items, bank.sentences, strict=True):
            assert torch.equal(item.x, arc_columns(sentence.words, sentence.tags, 500))
    (batch,) = DataLoader(bank, batch_size=2, collate_fn=bank.collate)
    assert isinstance(batch.x, SparseFeatures)
    assert batch.lengths.tolist() == [7, 2]
    assert batch.index.tolist() == [0, 1]
    assert batch.y.tolist() == [[0, 1, 5, 5, 1, 5, 1], [0, 1, -1, -1, -1, -1, -1]]
    small = items[1].x
    assert torch.equal(batch.x.columns[1, :2, :3, : small.shape[2]], small)
    assert int((batch.x.columns[1] >= 0).sum()) == int((small >= 0).sum())
    potentials = LinearArcs(500)(batch.x, batch.lengths)
    assert torch.equal(Arborescence(Projective(single_root=True)).check_target(batch.y, potentials), batch.y)


def test_the_column_of_the_tags_is_chosen(write):
    text = "".join(
        f"{t}\t{word}\t_\t{upos}\t{xpos}\t_\t{head}\t_\t_\t_\n"
        for t, (word, upos, xpos, head) in enumerate(
            (("go", "VERB", "VB", 0), ("on", "_", "RP", 1), ("!", "PUNCT", "EXCL", 1), ("now", "ADV", "_", 1)), 1
        )
    )
    path = write(text)
    coarse, fine = CoNLLU(path, num_features=500), CoNLLU(path, num_features=500, tags="xpos")
    assert coarse.sentences[0].tags == ("VERB", "RP", "PUNCT", "ADV")  # the other column stands in
    assert fine.sentences[0].tags == ("VB", "RP", "EXCL", "ADV")
    assert coarse.sentences[0].punctuation == fine.sentences[0].punctuation == (False, False, True, False)
    assert not torch.equal(coarse[0].x, fine[0].x)
    assert coarse.lengths.tolist() == [4]


def test_sentences_whose_arcs_cross(write):
    path = write(CROSSING + VAMONOS)
    bank = CoNLLU(path)
    assert [s.projective for s in bank.sentences] == [False, True, True]
    batch = bank.collate([bank[0]])
    with pytest.raises(ValueError, match="target"):
        Arborescence(Projective()).check_target(batch.y, Potentials(torch.zeros(1, 4, 5)))
    fewer = CoNLLU(path, skip_nonprojective=True)
    assert (len(fewer), fewer.num_skipped) == (2, 1)
    assert [fewer[i].index for i in range(2)] == [0, 1]
    assert fewer.sentences == bank.sentences[1:]
    for wrong in ({"num_features": 2**31}, {"tags": "lemma"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CoNLLU(path, **wrong)


def test_attachment_scores(write):
    sentences = read_conllu(write(VAMONOS))
    result = attachment([torch.tensor([0, 1, 5, 5, 1, 1, 5]), [2, 0, -1, -1]], sentences)
    assert result == (5 / 9, 5 / 7, 9, 2, None, None)
    assert attachment([s.heads for s in sentences], sentences)[:2] == (1.0, 1.0)
    dots = Sentence((".",), ("PUNCT",), (0,), 1)
    assert attachment([[0]], [dots]) == (1.0, None, 1, 1, None, None)
    assert attachment([], [], []) == (None, None, 0, 0, None, None)
    for heads, given in (([[0], [-1]], [dots, dots._replace(heads=(-1,))]), ([[0] * 7], sentences)):
        with pytest.raises(ValueError):
            attachment(heads, given)


def test_labelled_attachment_scores(write):
    sentences = read_conllu(write(VAMONOS))
    heads = [torch.tensor([0, 1, 5, 5, 1, 1, 5]), [0, 1]]
    relations = [["root", "iobj", "case", "det", "obl", "amod", "punct"], ["root", "punct", "more"]]
    result = attachment(heads, sentences, relations)
    assert result == (7 / 9, 6 / 7, 9, 2, 6 / 9, 5 / 7)
    assert attachment([s.heads for s in sentences], sentences, [s.relations for s in sentences]).las == 1.0
    lacking = sentences[1]._replace(relations=("root", "_"))
    for predicted, given in (
        (relations[:1], sentences),
        ([["root"], relations[1]], sentences),
        (relations, [sentences[0], lacking]),
    ):
        with pytest.raises(ValueError):
            attachment(heads, given, predicted)


@pytest.mark.parametrize("tags", ["upos", "xpos"])
def test_what_is_written_is_read_again(write, tmp_path, tags):
    sentences = read_conllu(write(VAMONOS + treebank(3, 5)), tags=tags)
    heads, relations = [s.heads for s in sentences], [s.relations for s in sentences]
    write_conllu(tmp_path / "out.conllu", sentences, heads, relations)
    again = read_conllu(tmp_path / "out.conllu", tags=tags)
    assert [s._replace(line=0) for s in again] == [s._replace(line=0) for s in sentences]
    write_conllu(tmp_path / "out.conllu", sentences[:1], [torch.tensor([0, 1, 5, 5, 1, 5, 1, -1])])
    assert read_conllu(tmp_path / "out.conllu")[0].relations == ("_",) * 7
    with pytest.raises(ValueError, match="heads has 1"):
        write_conllu(tmp_path / "out.conllu", sentences[:1], [[0]])
    assert read_conllu(tmp_path / "out.conllu")[0].heads == (0, 1, 5, 5, 1, 5, 1)


def test_relations_are_labels(write):
    train = CoNLLU(write(VAMONOS), num_features=500, labelled=True)
    assert train.labels == ["amod", "case", "det", "obj", "obl", "punct", "root"]
    assert train.num_labels == 7
    batch = train.collate([train[0], train[1]])
    trees = Arborescence(Projective(single_root=True), num_labels=7)
    potentials = LinearArcs(500, num_labels=7, structure=trees)(batch.x, batch.lengths)
    assert torch.equal(trees.check_target(batch.y, potentials), batch.y)
    heads, labels = trees.split(batch.y)
    assert heads.tolist() == [[0, 1, 5, 5, 1, 5, 1], [0, 1, -1, -1, -1, -1, -1]]
    assert train.relations(labels) == [list(s.relations) for s in train.sentences]
    test = CoNLLU(write(VAMONOS.replace("amod", "amod:new"), "test.conllu"), num_features=500, labels=train.labels)
    assert test.labels == train.labels
    unknown = test.collate([test[0], test[1]])
    assert (unknown.y == batch.y).tolist() == [[True] * 5 + [False, True], [True] * 7]
    with pytest.raises(ValueError, match="target has head -1"):
        trees.check_target(unknown.y, potentials)
    with pytest.raises(ValueError, match="num_labels=7"):
        solve(LinearArcs(500), train, 0.1)
    with pytest.raises(ValueError, match="num_labels=None"):
        solve(LinearArcs(500, num_labels=7), CoNLLU(write(VAMONOS), num_features=500), 0.1)
    for text, wrong, words in (
        (rows(0, 1), {"labelled": True}, "line 1"),
        (VAMONOS, {"labels": ["punct", "punct"]}, "labels"),
        (VAMONOS, {"labels": "punct"}, "labels"),
        (VAMONOS, {"labelled": True, "trees": False}, "labelled"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            CoNLLU(write(text), **wrong)


def test_labelled_trees_from_file_to_file(write, tmp_path):
    train = CoNLLU(write(treebank(1, 60), "train.conllu"), num_features=4096, labelled=True)
    test = CoNLLU(write(treebank(2, 20), "test.conllu"), num_features=4096, labels=train.labels)
    trees = Arborescence(Projective(single_root=True), normalize=False, num_labels=train.num_labels)
    head = LinearArcs(train.in_features, num_labels=train.num_labels, structure=trees)
    assert solve(head, train, lam=30 / len(train)).relative_gap <= 0.01
    path = tmp_path / "parser.safetensors"
    pytest.importorskip("safetensors")
    save_model(path, head, labels=train.labels)
    saved = load_head(path)
    assert saved.labels == train.labels
    batch = test.collate([test[i] for i in range(len(test))])
    heads, labels = saved.structure.split(saved.decode(batch.x, batch.lengths))
    relations = test.relations(labels)
    scores = attachment(heads, test.sentences, relations)
    assert 0.8 < scores.las <= scores.uas <= 1.0
    write_conllu(tmp_path / "parsed.conllu", test.sentences, heads, relations)
    assert [list(s.relations) for s in read_conllu(tmp_path / "parsed.conllu")] == relations


def test_wrong_arcs_are_drawn_in_red_beside_the_true_ones(write):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    sentences = read_conllu(write(VAMONOS))
    draw_arcs(figure, sentences, [torch.tensor([0, 1, 5, 5, 1, 1, 5]), [2, 0, -1]])
    for axis, wrong, count in zip(figure.axes, (2, 2), (7, 2), strict=True):
        colors = [line.get_color() for line in axis.lines]  # each arc is a line and its arrow
        assert colors.count("red") == colors.count("gray") == 2 * wrong
        assert colors.count("black") == 2 * (count - wrong)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == list(sentences[0].words)


@pytest.fixture
def run_here(run_script):
    """Run the example in this process, and give back its report."""

    def run_here(folder, *flags):
        out = run_script(EXAMPLE, "--report", folder, *flags)
        assert "\ntest uas " in out
        return json.loads((folder / "report.json").read_text(encoding="utf-8"))

    return run_here


@pytest.fixture
def banks(write):
    """Flags: most sentences come from the grammar."""
    train = write(treebank(1, 60) + "\n" + CROSSING, "train.conllu")
    test = write(treebank(2, 40) + "\n" + CROSSING, "test.conllu")
    return "--train", train, "--test", test, "--features", 4096


def test_the_example_learns_a_little_grammar(banks, tmp_path, run_here):
    pytest.importorskip("matplotlib")
    report = run_here(tmp_path, *banks, "--gap", 0.01)
    assert report["n"] == 60
    assert report["train_nonprojective_left_out"] == 1
    assert report["lam"] == pytest.approx(30 / 60)
    assert report["gap"] <= 0.01 * report["primal"]
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert report["stopped_because"].startswith("certified gap")
    assert report["train_uas"] > 0.97
    assert 0.9 < report["test_uas"] < 1.0  # where "by" belongs nobody can say
    assert 0.9 < report["test_uas_without_punctuation"] < report["test_uas"]
    assert (tmp_path / "convergence.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_example_learns_labels(banks, tmp_path, run_here):
    pytest.importorskip("matplotlib")
    report = run_here(tmp_path, *banks, "--labelled", "true", "--gap", 0.02)
    assert 0.85 < report["test_las"] <= report["test_uas"]


def test_words_to_parse_have_no_trees(tmp_path):
    (tmp_path / "new.conllu").write_text(rows("_", "_", "_") + "\n" + rows(0, 7) + "\n")
    new = CoNLLU(tmp_path / "new.conllu", trees=False)
    assert [sentence.heads for sentence in new.sentences] == [(-1, -1, -1), (-1, -1)]
    batch = new.collate([new[0], new[1]])
    head = LinearArcs(new.in_features)
    heads = head.structure.decode(head(batch.x, batch.lengths))
    assert heads.shape == (2, 3)
    with pytest.raises(ValueError, match="target"):
        head.structure.check_target(batch.y, head(batch.x, batch.lengths))
