"""Dependency treebanks in CoNLL-U, the format of Universal Dependencies (universaldependencies.org/format.html)."""

from __future__ import annotations

import operator
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_flags, check_several, check_whole, needs
from torchssvm.core.batch import Batch
from torchssvm.core.files import whole_file
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.structures.arborescence.structure import is_projective

from ..lines import UNPACKED_LIMIT, is_blank, read_lines, split_columns
from ..padded import PADDING, Example, collating, padded, place_of
from .arc_features import arc_columns

_ABSENT = "_"
_COLUMNS = ("id", "form", "LEMMA", "upos", "xpos", "FEATS", "head", "DEPREL", "DEPS", "MISC")  # capitals: unparsed
_HEAD, _DEPREL = 6, 7


class Sentence(NamedTuple):
    """One sentence of a treebank.

    Attributes:
        words: The T words (FORM).
        tags: Their parts of speech: UPOS or XPOS, as chosen, or the other one where that is ``_``.
        heads: Their heads, 1 to T, and 0 at the children of the root; all -1 in a file that was read without trees.
        line: Line of the first token in the file.
        upos: Their UPOS, which say what is punctuation; empty where ``tags`` say it.
        relations: Their DEPREL, such as ``nsubj`` and ``nmod:poss``; empty in a file that was read without trees.

    Example:
        >>> sentence = read_conllu("treebank.conllu")[0]
        >>> sentence.words, sentence.heads
        (('Dogs', 'see', 'cats'), (2, 0, 2))
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    line: int
    upos: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()

    @property
    def projective(self) -> bool:
        """Whether no arcs cross."""
        return bool(is_projective(torch.tensor([self.heads])))

    @property
    def punctuation(self) -> tuple[bool, ...]:
        """Which tokens are punctuation: tag PUNCT, or, without a tag, nothing but punctuation."""
        return tuple(
            tag == "PUNCT" or (tag == _ABSENT and all(unicodedata.category(c).startswith("P") for c in word))
            for word, tag in zip(self.words, self.upos or self.tags, strict=True)
        )


class _Word(NamedTuple):
    form: str
    tag: str
    head: int
    line: int
    upos: str
    relation: str


def read_conllu(
    path: str | os.PathLike[str],
    *,
    tags: str = "upos",
    trees: bool = True,
    single_root: bool = True,
    limit: int = UNPACKED_LIMIT,
) -> list[Sentence]:
    """Read a treebank: UTF-8, plain or gzip, ten columns, blank lines after every sentence.

    Columns are separated by single tabs; where more lines of the file have as many columns by runs of blanks, by
    these. Comments, multiword tokens (``3-4``) and empty nodes (``5.1``) are skipped: the basic dependencies connect
    words. The package conllu parses the lines that are not plainly the next word; columns and trees are checked
    here.

    Args:
        path: The file.
        tags: The column of the parts of speech, ``"upos"`` or ``"xpos"``; the other one stands in for ``_``.
        trees: Whether the sentences have trees. Without, HEAD is not read, and every head is -1.
        single_root: Whether a sentence must have exactly one word with HEAD 0; False takes several.
        limit: Bytes that a gzip file may unpack to.

    Raises:
        ImportError: conllu is not installed.
        ValueError: ``tags`` names another column. Or the file is not CoNLL-U, or a sentence has no tree; the message
            begins with file and line.

    Example:
        >>> [len(sentence.words) for sentence in read_conllu("treebank.conllu", tags="upos")]
        [3]
    """
    check_tag_column(tags)
    check_flags(trees=trees, single_root=single_root)
    with needs("CoNLL-U files need conllu: pip install 'torchssvm[data]'", "conllu"):
        import conllu.exceptions
    blocks = _blocks(read_lines(path, limit))
    if not blocks:
        raise ValueError(f"{path}, line 1: the file has no sentences")
    fields = split_columns([line for block in blocks for _, line in block])
    sentences: list[Sentence] = []
    for block in blocks:
        words: list[_Word] = []
        for number, line in block:
            row = fields.split(line)
            if _is_plain(row, line, str(len(words) + 1), trees):
                head = int(row[_HEAD]) if trees else -1
                words.append(_word(row[1], row[3], row[4], head, number, tags, row[_DEPREL]))
                continue
            where = f"{path}, line {number}"
            if len(row) != len(_COLUMNS):
                raise ValueError(
                    f"{where}: {len(row)} column{'s' * (len(row) > 1)}, separated by {fields.separator}, and CoNLL-U "
                    f"has {len(_COLUMNS)}; write {_ABSENT!r} for an absent value"
                )
            try:
                (token,) = conllu.parse_token_and_metadata("\t".join(row), fields=(*_COLUMNS, "surplus"))
            except (conllu.exceptions.ParseException, ValueError) as error:  # ValueError: a number too long for Python
                raise ValueError(f"{where}: {error}") from error
            if len(token) != len(_COLUMNS):  # conllu ends columns at two blanks, too
                raise ValueError(f"{where}: a column is empty, or has two blanks in a row, which CoNLL-U forbids")
            if _is_word(token, len(words) + 1, where, trees):
                head = token["head"] if trees else -1
                xpos, relation = token["xpos"] or _ABSENT, token["DEPREL"] or _ABSENT
                words.append(_word(token["form"], token["upos"], xpos, head, number, tags, relation))
        if not words:
            raise ValueError(f"{path}, line {block[0][0]}: the sentence that begins here has no words")
        if trees:
            _check_tree(words, path, single_root)
        forms, its, heads, numbers, upos_of, relations = zip(*words, strict=True)
        upos_of, relations = upos_of if tags == "xpos" else (), relations if trees else ()
        sentences.append(Sentence(forms, its, heads, numbers[0], upos_of, relations))
    return sentences


def _blocks(lines: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Number and text of the lines of each sentence, without comments."""
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(lines, start=1):
        if is_blank(line):
            blocks.append([])
        elif not line.startswith("#"):
            blocks[-1].append((number, line))
    return [block for block in blocks if block]


def check_tag_column(tags: str) -> None:
    """Raise ValueError unless ``tags`` is a column of parts of speech."""
    if tags not in ("upos", "xpos"):
        raise ValueError(f"tags={tags!r} must be 'upos' or 'xpos', the column with the parts of speech")


def _is_plain(row: Sequence[str], line: str, expected: str, trees: bool) -> bool:
    """Whether a line is of the next word, and has nothing that conllu would refuse or read in another way."""
    if len(row) != len(_COLUMNS) or row[0] != expected or "  " in line or not all(row) or not row[-1].strip():
        return False
    head = row[_HEAD]
    if not (head.isascii() and head.isdigit() and len(head) < 10 and (head == "0" or head[0] != "0")):
        return not trees and head == _ABSENT
    return True


def _word(form: str, upos: str, xpos: str, head: int, line: int, tags: str, relation: str) -> _Word:
    """A word, tagged by ``tags``, or by the other column where that is absent."""
    first, second = (upos, xpos) if tags == "upos" else (xpos, upos)
    tag = first if first != _ABSENT else second
    return _Word(form, tag, head, line, upos if tags == "xpos" else tag, relation)


def write_conllu(
    path: str | os.PathLike[str],
    sentences: Iterable[Sentence],
    heads: Iterable[Sequence[int] | Tensor],
    relations: Iterable[Sequence[str]] | None = None,
) -> None:
    """Write sentences with predicted trees as CoNLL-U, whole or not at all: ID, FORM, the tags, HEAD and DEPREL.

    Args:
        path: The file.
        sentences: The sentences.
        heads: The heads of each sentence; entries beyond its length are ignored.
        relations: The relations of each sentence; None writes ``_``.

    Raises:
        ValueError: The numbers of sentences differ, or a sentence has too few heads or relations.

    Example:
        >>> sentences = read_conllu("treebank.conllu")
        >>> write_conllu("parsed.conllu", sentences, [[2, 0, 2]], [["nsubj", "root", "obj"]])
        >>> read_conllu("parsed.conllu")[0].relations
        ('nsubj', 'root', 'obj')
    """
    lines: list[str] = []
    for sentence, its, names in _predicted(heads, sentences, relations):
        xpos = sentence.tags if sentence.upos else [_ABSENT] * len(its)
        upos = sentence.upos or sentence.tags
        columns = zip(sentence.words, upos, xpos, its, names or [_ABSENT] * len(its), strict=True)
        for place, (word, first, second, head, name) in enumerate(columns, start=1):
            row = (place, word, _ABSENT, first, second, _ABSENT, head, name, _ABSENT, _ABSENT)
            lines.append("\t".join(map(str, row)))
        lines.append("")
    with whole_file(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def _predicted(
    heads: Iterable[Sequence[int] | Tensor], sentences: Iterable[Sentence], relations: Iterable[Sequence[str]] | None
) -> list[tuple[Sentence, list[int], list[str] | None]]:
    """Each sentence with its predicted heads, and relations if there are any, cut to its length."""
    names = {"heads": heads, "sentences": sentences, **({} if relations is None else {"relations": relations})}
    for name, given in names.items():
        check_several(given, name, "a list, with an entry for each sentence")
    heads, sentences = list(heads), list(sentences)
    told = [None] * len(heads) if relations is None else list(relations)
    if not len(heads) == len(told) == len(sentences):
        which = f"the heads of {len(heads)}" if len(heads) != len(sentences) else f"the relations of {len(told)}"
        raise ValueError(f"predictions have {which} sentences, and there are {len(sentences)}")
    made = []
    for number, (sentence, its, texts) in enumerate(zip(sentences, heads, told, strict=True)):
        length = len(sentence.words)
        row = [int(head) for head in its[:length]]
        named = None if texts is None else list(texts[:length])
        for name, entries in (("heads", row), ("relations", named)):
            if entries is not None and len(entries) < length:
                raise ValueError(f"{name} has {len(entries)} entries for sentence {number}, which has {length} words")
        made.append((sentence, row, named))
    return made


def _is_word(token: Mapping[str, Any], expected: int, where: str, trees: bool) -> bool:
    """Whether the ID names the next word, not a multiword token or an empty node."""
    name, head = token["id"], token["head"]
    if isinstance(name, tuple):
        spelt, first, after = "".join(map(str, name)), name[0], name[1] == "."
        if (first != expected - 1) if after else (first < expected):
            raise ValueError(f"{where}: ID is {spelt!r}, which does not belong before word {expected}")
        return False
    if name != expected:
        raise ValueError(f"{where}: ID is '{name}', and the next word of the sentence is {expected}")
    for column in ("form", "upos"):
        if not token[column]:
            raise ValueError(f"{where}: {column.upper()} is empty: write {_ABSENT!r} for an absent value")
    if trees and (head is None or head < 0):
        written = _ABSENT if head is None else head
        raise ValueError(f"{where}: HEAD is {written}, must be a word's ID, or 0; trees=False reads words to parse")
    return True


def _check_tree(words: Sequence[_Word], path: str | os.PathLike[str], single_root: bool) -> None:
    """Raise ValueError unless the heads form a tree whose root has one child, or any number of them."""
    for word in words:
        if word.head > len(words):
            raise ValueError(f"{path}, line {word.line}: HEAD is {word.head}, and the sentence has {len(words)} words")
    roots = [word.line for word in words if word.head == 0]
    if not roots or (single_root and len(roots) > 1):
        lines = f", in lines {', '.join(map(str, roots))}" if roots else ""
        raise ValueError(
            f"{path}, line {words[0].line}: the sentence that begins here has {len(roots)} words with HEAD 0{lines}; "
            f"it needs 1{'; single_root=False takes several' * (len(roots) > 1)}"
        )
    reached = {0}
    for start, word in enumerate(words, start=1):
        path_up: list[int] = []
        at = start
        while at not in reached:
            if at in path_up:
                raise ValueError(f"{path}, line {word.line}: the heads of word {start} lead in a circle to word {at}")
            path_up.append(at)
            at = words[at - 1].head
        reached.update(path_up)


class CoNLLU(Dataset[Example]):
    """The sentences of a CoNLL-U file, with hashed features of all their arcs.

    An item is ``(x, y, index)``: columns ``[T, T+1, P]`` int32, computed by :func:`arc_columns` when the item is
    fetched; the heads, int64 ``[T]``; and its number in this dataset. :meth:`collate` pads items to a batch, whose x is
    ``SparseFeatures`` for the head ``LinearArcs(in_features)``.

    With labels, y has ``head * num_labels + label``, for ``LinearArcs(in_features, num_labels=num_labels)``. A relation
    that is not among the labels makes -1: such a sentence can be parsed and scored, where the relation counts as wrong,
    but not trained on.

    Args:
        path: The file.
        in_features: Columns of the features. With 2^16, features that share columns cost 4 points of attachment on an
            English treebank; the default takes 16 MiB of weights.
        num_features: The same by another name; give one of the two.
        tags: The column of the parts of speech, ``"upos"`` or ``"xpos"``.
        keep_features: Keep the features of a sentence, ``4 T (T+1) P`` bytes (P is about 40), instead of computing them
            in every pass.
        skip_nonprojective: Leave out sentences whose arcs cross, for training with ``Projective()``, which cannot have
            them as targets. ``num_skipped`` is their number.
        trees: False reads words to parse: HEAD may be ``_``. Such sentences cannot be trained on.
        single_root: Whether a sentence must have exactly one word with HEAD 0. False takes several, as decoders do
            unless they are told otherwise (``Projective(single_root=True)``).
        labelled: Whether arcs have labels: the relations of this file (DEPREL), subtypes such as ``nmod:poss`` too.
        labels: The relations to take as labels, such as ``train.labels`` for a test file.

    Attributes:
        sentences: The sentences.
        labels: The relations, by their numbers, in alphabetical order; None without labels.
        num_labels: Their number; None without labels.

    Raises:
        ValueError: The file is not CoNLL-U (see :func:`read_conllu`), ``in_features`` or ``tags`` is out of range, or
            no sentence is left. Or a word has no DEPREL, and labels are asked for; or two labels are the same.

    Example:
        >>> trees = CoNLLU("treebank.conllu", in_features=2**16)
        >>> head = LinearArcs(trees.in_features)
        >>> solve(head, trees, lam=0.01, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        in_features: int = 2**22,
        num_features: int | None = None,
        tags: str = "upos",
        keep_features: bool = False,
        skip_nonprojective: bool = False,
        trees: bool = True,
        single_root: bool = True,
        labelled: bool = False,
        labels: Sequence[str] | None = None,
    ) -> None:
        check_flags(labelled=labelled)
        if (skip_nonprojective or labelled) and not trees:
            name = "labelled" if labelled else "skip_nonprojective"
            raise ValueError(f"{name}=True, and trees=False reads no trees")
        if num_features is not None:
            if in_features not in (2**22, num_features):
                raise ValueError(f"num_features={num_features} and in_features={in_features} are the same: give one")
            in_features = check_whole(num_features, "num_features", most=2**31 - 1)
        self.in_features = check_whole(in_features, "in_features", most=2**31 - 1)
        self.path = Path(path)
        self._kept: dict[int, Tensor] | None = {} if keep_features else None
        every = read_conllu(path, tags=tags, trees=trees, single_root=single_root)
        self.sentences = [s for s in every if s.projective] if skip_nonprojective else every
        self.num_skipped = len(every) - len(self.sentences)
        if not self.sentences:
            raise ValueError(f"{self.path}: arcs cross in all {len(every)} sentences, and none is left")
        self.labels = self._labels_of(labels) if labelled or labels is not None else None
        self.num_labels = None if self.labels is None else len(self.labels)
        self._numbers = {label: number for number, label in enumerate(self.labels or ())}

    def _labels_of(self, labels: Sequence[str] | None) -> list[str]:
        """The labels; None takes the relations of the sentences."""
        for sentence in self.sentences:
            if _ABSENT in sentence.relations:
                raise ValueError(f"{self.path}, line {sentence.line}: the sentence that begins here lacks DEPREL")
        if labels is None:
            labels = sorted({relation for sentence in self.sentences for relation in sentence.relations})
        check_several(labels, "labels", "a list of texts, such as train.labels")
        if len(set(labels)) < len(labels):
            raise ValueError(f"labels={labels} must all be different")
        return list(labels)

    def relations(self, labels: Tensor) -> list[list[str]]:
        """The names of labels ``[B, N]`` int64, -1 in the padding: a list for each sentence, ``_`` without labels."""
        names = self.labels or [_ABSENT]
        return [[names[label] for label in row if label >= 0] for row in labels.tolist()]

    @property
    def lengths(self) -> Tensor:
        """``[n]`` int64, the number of words of each sentence: exact passes and ``ByLength`` pad little with it."""
        return torch.tensor([len(sentence.heads) for sentence in self.sentences])

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, i: int) -> Example:
        at = place_of(i, len(self))
        sentence = self.sentences[at]
        y = torch.tensor(sentence.heads)
        if self.num_labels is not None and sentence.relations:
            labels = torch.tensor([self._numbers.get(relation, -1) for relation in sentence.relations])
            y = torch.where(labels >= 0, y * self.num_labels + labels, -1)
        return Example(self._columns(at), y, at)

    def _columns(self, at: int) -> Tensor:
        if self._kept is not None and at in self._kept:
            return self._kept[at]
        columns = arc_columns(self.sentences[at].words, self.sentences[at].tags, self.in_features)
        if self._kept is not None:
            self._kept[at] = columns
        return columns

    @staticmethod
    @collating
    def collate(examples: Sequence[Example]) -> Batch:
        """Pad both axes of the arcs, and the lists of columns, with -1."""
        lengths = torch.tensor([len(example.y) for example in examples])
        columns = padded([example.x for example in examples], PADDING)
        heads = padded([example.y for example in examples], PADDING)
        index = torch.tensor([example.index for example in examples])
        return Batch(SparseFeatures(columns), heads, index, lengths)

    def __repr__(self) -> str:
        left_out = f", {self.num_skipped} non-projective left out" if self.num_skipped else ""
        labels = "" if self.labels is None else f", {self.num_labels} labels"
        return f"CoNLLU({str(self.path)!r}, num_features={self.in_features}{labels}): {len(self)} sentences{left_out}"


class Attachment(NamedTuple):
    """Attachment scores: shares of tokens with the right head, and with the right head and relation.

    Attributes:
        uas: Unlabelled attachment score: share of all tokens with the right head; None without tokens.
        uas_without_punctuation: Share of the tokens that are not punctuation.
        tokens: Number of tokens.
        punctuation: Number of tokens that are punctuation.
        las: Labelled attachment score: share of all tokens with the right head and relation; None without relations.
        las_without_punctuation: Share of the tokens that are not punctuation.

    Example:
        >>> sentences = read_conllu("treebank.conllu")
        >>> attachment([[2, 0, 2]], sentences)[:4]
        (1.0, 1.0, 3, 0)
    """

    uas: float | None
    uas_without_punctuation: float | None
    tokens: int
    punctuation: int
    las: float | None = None
    las_without_punctuation: float | None = None


def attachment(
    heads: Iterable[Sequence[int] | Tensor],
    sentences: Iterable[Sentence],
    relations: Iterable[Sequence[str]] | None = None,
) -> Attachment:
    """Compare the heads, and relations, of sentences with the treebank.

    Args:
        heads: The predicted heads of each sentence; entries beyond its length are ignored.
        sentences: The sentences, in the same order.
        relations: The predicted relations of each sentence, with subtypes; None gives no labelled scores.

    Raises:
        ValueError: The numbers of sentences differ, or a sentence has too few heads or relations, or was read without
            its tree, or lacks DEPREL.

    Example:
        >>> sentences = read_conllu("treebank.conllu")
        >>> attachment([torch.tensor([2, 0, 2])], sentences).uas
        1.0
        >>> attachment([[2, 0, 2]], sentences, [["nsubj", "root", "iobj"]]).las
        0.6666666666666666
    """
    right_heads: list[bool] = []
    right_arcs: list[bool] = []
    marks: list[bool] = []
    for number, (sentence, its, names) in enumerate(_predicted(heads, sentences, relations)):
        if min(sentence.heads, default=0) < 0:
            raise ValueError(f"sentence {number} was read without its tree: read it with trees=True")
        if names is not None and _ABSENT in sentence.relations:
            raise ValueError(f"sentence {number} lacks DEPREL in its treebank: leave out relations")
        marks += sentence.punctuation
        right_heads += map(operator.eq, its, sentence.heads)
        pairs = zip(its, names or its, strict=True), zip(sentence.heads, sentence.relations or its, strict=True)
        right_arcs += map(operator.eq, *pairs)

    def shares(right: list[bool]) -> tuple[float | None, float | None]:
        words = [correct for correct, mark in zip(right, marks, strict=True) if not mark]
        return (sum(right) / len(right) if right else None), (sum(words) / len(words) if words else None)

    labelled = (None, None) if relations is None else shares(right_arcs)
    return Attachment(*shares(right_heads), len(marks), sum(marks), *labelled)
