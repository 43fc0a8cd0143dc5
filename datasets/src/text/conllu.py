"""Dependency treebanks in CoNLL-U, the format of Universal Dependencies (universaldependencies.org/format.html)."""

from __future__ import annotations

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
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.structures.arborescence.structure import is_projective

from ..lines import UNPACKED_LIMIT, is_blank, read_lines, split_columns
from ..padded import PADDING, Example, collating, padded, place_of
from .arc_features import arc_columns

_ABSENT = "_"
_COLUMNS = ("id", "form", "LEMMA", "upos", "xpos", "FEATS", "head", "DEPREL", "DEPS", "MISC")  # capitals: unparsed


class Sentence(NamedTuple):
    """One sentence of a treebank.

    Attributes:
        words: The T words (FORM).
        tags: Their parts of speech: UPOS or XPOS, as chosen, or the other one where that is ``_``.
        heads: Their heads, 1 to T, and 0 at the children of the root; all -1 in a file that was read without trees.
        line: Line of the first token in the file.
        upos: Their UPOS, which say what is punctuation; empty where ``tags`` say it.

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
                head = int(row[6]) if trees else -1
                words.append(_word(row[1], row[3], row[4], head, number, tags))
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
                words.append(_word(token["form"], token["upos"], token["xpos"] or _ABSENT, head, number, tags))
        if not words:
            raise ValueError(f"{path}, line {block[0][0]}: the sentence that begins here has no words")
        if trees:
            _check_tree(words, path, single_root)
        forms, its, heads, numbers, upos_of = zip(*words, strict=True)
        sentences.append(Sentence(forms, its, heads, numbers[0], upos_of if tags == "xpos" else ()))
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
    head = row[6]
    if not (head.isascii() and head.isdigit() and len(head) < 10 and (head == "0" or head[0] != "0")):
        return not trees and head == _ABSENT
    return True


def _word(form: str, upos: str, xpos: str, head: int, line: int, tags: str) -> _Word:
    """A word, tagged by ``tags``, or by the other column where that is absent."""
    first, second = (upos, xpos) if tags == "upos" else (xpos, upos)
    tag = first if first != _ABSENT else second
    return _Word(form, tag, head, line, upos if tags == "xpos" else tag)


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

    Raises:
        ValueError: The file is not CoNLL-U (see :func:`read_conllu`), ``in_features`` or ``tags`` is out of range, or
            no sentence is left.

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
    ) -> None:
        if skip_nonprojective and not trees:
            raise ValueError("skip_nonprojective=True, and trees=False reads no trees to skip")
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

    @property
    def lengths(self) -> Tensor:
        """``[n]`` int64, the number of words of each sentence: exact passes and ``ByLength`` pad little with it."""
        return torch.tensor([len(sentence.heads) for sentence in self.sentences])

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, i: int) -> Example:
        at = place_of(i, len(self))
        return Example(self._columns(at), torch.tensor(self.sentences[at].heads), at)

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
        return f"CoNLLU({str(self.path)!r}, num_features={self.in_features}): {len(self)} sentences{left_out}"


class Attachment(NamedTuple):
    """Unlabelled attachment scores: shares of tokens with the right head; None without tokens.

    Attributes:
        uas: Share of all tokens.
        uas_without_punctuation: Share of the tokens that are not punctuation.
        tokens: Number of tokens.
        punctuation: Number of tokens that are punctuation.

    Example:
        >>> sentences = read_conllu("treebank.conllu")
        >>> attachment([[2, 0, 2]], sentences)
        Attachment(uas=1.0, uas_without_punctuation=1.0, tokens=3, punctuation=0)
    """

    uas: float | None
    uas_without_punctuation: float | None
    tokens: int
    punctuation: int


def attachment(found: Iterable[Sequence[int] | Tensor], sentences: Iterable[Sentence]) -> Attachment:
    """Compare the heads of sentences with the treebank.

    Args:
        found: The predicted heads of each sentence; entries beyond its length are ignored.
        sentences: The sentences, in the same order.

    Raises:
        ValueError: The numbers of sentences differ, or a sentence has too few heads, or was read without its tree.

    Example:
        >>> sentences = read_conllu("treebank.conllu")
        >>> attachment([torch.tensor([2, 0, 2])], sentences).uas
        1.0
    """
    for name, given in (("found", found), ("sentences", sentences)):
        check_several(given, name, "a list, with an entry for each sentence")
    found, sentences = list(found), list(sentences)
    if len(found) != len(sentences):
        raise ValueError(f"found has the heads of {len(found)} sentences, and there are {len(sentences)}")
    right = right_words = tokens = punctuation = 0
    for number, (heads, sentence) in enumerate(zip(found, sentences, strict=True)):
        length = len(sentence.heads)
        if min(sentence.heads, default=0) < 0:
            raise ValueError(f"sentence {number} was read without its tree: read it with trees=True")
        predicted = [int(head) for head in heads[:length]]
        if len(predicted) < length:
            raise ValueError(f"found has {len(predicted)} heads for sentence {number}, which has {length} words")
        for mine, true, mark in zip(predicted, sentence.heads, sentence.punctuation, strict=True):
            tokens += 1
            punctuation += mark
            right += mine == true
            right_words += mine == true and not mark
    words = tokens - punctuation
    return Attachment(
        uas=right / tokens if tokens else None,
        uas_without_punctuation=right_words / words if words else None,
        tokens=tokens,
        punctuation=punctuation,
    )
