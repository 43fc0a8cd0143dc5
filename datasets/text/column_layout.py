"""Which columns of a file hold the words, the tags and the parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchssvm.core.arguments import describe

NAMES_LINE = "# global.columns ="
"""The beginning of the comment in which a CoNLL-U Plus file names its columns."""


class Columns(NamedTuple):
    """Columns of a file, each by its position (from 0; negative from the last) or by its name.

    Names are those of the comment ``# global.columns = ...`` of CoNLL-U Plus, or of the first line, if that holds all
    the names that are asked for.

    Attributes:
        word: The words.
        tag: The tags; None for a file without tags.
        pos: Parts of speech; None for a file without them.
        comment: Lines that begin with it between sentences are left out; empty means that there are no comments. A
            word at the beginning of a sentence may look like one, so say so only of files that have them.

    Example:
        >>> sentences = read_columns("train.txt", Columns(word=0, pos=1, tag=2))
        >>> sentences.words[:2], sentences.tags[:2]
        (['Anna', 'sees'], ['B-NP', 'B-VP'])
    """

    word: int | str = 0
    tag: int | str | None = -1
    pos: int | str | None = None
    comment: str = ""

    def check(self) -> Columns:
        """These, if their values are of the right kinds.

        Raises:
            TypeError: A column is neither a number nor a name, or ``comment`` is not a str.
        """
        for name, value in zip(self._fields[:3], self[:3], strict=True):
            if (value is None and name == "word") or isinstance(value, bool) or not isinstance(value, int | str | None):
                raise TypeError(f"{name}={value!r} must be the position of a column, or its name")
        if not isinstance(self.comment, str):
            raise TypeError(f"comment={describe(self.comment)} must be a str, such as '#', or empty")
        return self

    @property
    def names(self) -> list[str]:
        """The names that are asked for."""
        return [value for value in self[:3] if isinstance(value, str)]

    def places(self, count: int, names: Sequence[str], where: str) -> list[int | None]:
        """The positions of word, tag and pos in lines of ``count`` columns.

        Args:
            count: Columns of a line.
            names: The names of the file's columns; empty if it has none.
            where: File and line, for messages.

        Raises:
            ValueError: There is no such column.
        """
        found: list[int | None] = []
        for what, value in zip(self._fields[:3], self[:3], strict=True):
            if isinstance(value, str) and value not in names:
                known = f"the file names {', '.join(names)}" if names else "the file names no columns: give positions"
                raise ValueError(f"{where}: {what}={value!r} is not the name of a column; {known}")
            place = names.index(value) if isinstance(value, str) else value
            if place is not None and not -count <= place < count:
                raise ValueError(f"{where}: {count} column{'s' * (count > 1)}, and {what}={value!r} asks for another")
            found.append(None if place is None else place % count)
        return found
