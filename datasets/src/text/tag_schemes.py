"""Schemes of chunk tags: IOB1, IOB2, BIOES and BILOU become BIO (IOB2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from torchssvm.core.arguments import check_several
from torchssvm.structures.chain.transitions import Transitions

BIO = "bio"
"""The scheme of readers for the tags of chunks; None is no scheme, and tags of any form."""

_TAG = re.compile(r"O|[BIESLUM]-\S+")
_LETTER = {"B": "B", "S": "B", "U": "B", "I": "I", "M": "I", "E": "I", "L": "I"}  # of BIO


def to_bio(tags: Sequence[str], offsets: np.ndarray | None = None) -> list[str]:
    """The tags of the same chunks in BIO: B-X at the first token of every chunk, I-X at the others, O elsewhere.

    A chunk begins at B-X, S-X and U-X, and at any other tag of type X where the token before is O, of another type, or
    the end of a sentence or of a chunk (E, S, L, U). So tags are taken as they are: IOB1, IOB2, BIOES and BILOU files
    need not say which they are.

    Args:
        tags: O, or a letter (B, I, E, S, L, U or M), a hyphen and a type: of all tokens.
        offsets: int64 ``[n + 1]``: sentence i has the tokens ``offsets[i]`` to ``offsets[i + 1] - 1``;
            None is one sentence.

    Raises:
        ValueError: A tag has another form.

    Example:
        >>> to_bio(["I-LOC", "I-LOC", "O", "I-LOC"])
        ['B-LOC', 'I-LOC', 'O', 'B-LOC']
    """
    check_several(tags, "tags", "a list of tags")
    starts = {0} if offsets is None else set(np.asarray(offsets).tolist())
    bio: list[str] = []
    before, closed = "", False  # the type of the token before, and whether its tag ends a chunk
    for place, tag in enumerate(tags):
        if not _TAG.fullmatch(tag):
            raise ValueError(f"tags[{place}]={tag!r} must be O, or B, I, E, S, L, U or M, a hyphen and a type")
        letter, _, kind = tag.partition("-")
        begins = place in starts or closed or kind != before
        bio.append("O" if not kind else f"{'B' if begins else _LETTER[letter]}-{kind}")
        before, closed = kind, letter in ("E", "S", "L", "U")
    return bio


def check_scheme(scheme: str | None) -> None:
    """Raise ValueError unless ``scheme`` is one that readers know."""
    if scheme not in (BIO, None):
        raise ValueError(f"scheme={scheme!r} must be {BIO!r} for tags of chunks, or None to take tags as they are")


def first_wrong(tags: Sequence[str]) -> int | None:
    """The place of the first tag that :func:`to_bio` does not take; None if there is none."""
    wrong = {tag for tag in set(tags) if not _TAG.fullmatch(tag)}
    return next((place for place, tag in enumerate(tags) if tag in wrong), None) if wrong else None


def bio_transitions(tags: Sequence[str]) -> Transitions:
    """Which tags may follow each other: I-X only after B-X and I-X.

    Args:
        tags: The tag of every state: O, B-X or I-X.

    Raises:
        ValueError: A tag has another form, or an I-X has no B-X.

    Example:
        >>> allowed = bio_transitions(["O", "B-LOC", "I-LOC"])
        >>> Chain(3, transitions=allowed).transitions.pairs
        tensor([[ True,  True, False],
                [ True,  True,  True],
                [ True,  True,  True]])
    """
    check_several(tags, "tags", "a list of tags")
    allowed = torch.ones(len(tags), len(tags), dtype=torch.bool, device="cpu")  # also of a model on the meta device
    first = torch.ones(len(tags), dtype=torch.bool, device="cpu")
    for state, kind in _inside(tags):
        allowed[:, state] = torch.tensor([tag[:1] in "BI" and tag[2:] == kind for tag in tags], device="cpu")
        first[state] = False
    return Transitions(allowed, first=first)


def bioes_transitions(tags: Sequence[str]) -> Transitions:
    """Which tags may follow each other: I-X and E-X after B-X and I-X only, and nothing else there.

    Args:
        tags: The tag of every state: O, B-X, I-X, E-X, or S-X for a chunk of one token.

    Raises:
        ValueError: A tag has another form, or a B-X or I-X has no E-X, so that its chunk could not end.

    Example:
        >>> bioes_transitions(["O", "B-LOC", "E-LOC"]).pairs
        tensor([[ True,  True, False],
                [False, False,  True],
                [ True,  True, False]])
    """
    check_several(tags, "tags", "a list of tags")
    kinds = [tag.partition("-")[2] if tag[:1] in "BI" else "" for tag in tags]  # of the chunk that is open after it
    for state, tag in enumerate(tags):
        if tag != "O" and (tag[:2] not in ("B-", "I-", "E-", "S-") or len(tag) < 3):
            raise ValueError(f"tags[{state}]={tag!r} must be O, or B-TYPE, I-TYPE, E-TYPE or S-TYPE for some type")
        if kinds[state] and f"E-{kinds[state]}" not in tags:
            raise ValueError(f"tags has {tag!r} and no 'E-{kinds[state]}': a chunk of this type could not end")
    needs = [tag.partition("-")[2] if tag[:1] in "IE" else "" for tag in tags]  # of the chunk that is open before it
    allowed, first, last = (  # on the CPU also where a model is made on the meta device
        torch.tensor(each, device="cpu")
        for each in (
            [[after == before for after in needs] for before in kinds],
            [not kind for kind in needs],
            [not kind for kind in kinds],
        )
    )
    return Transitions(allowed, first=first, last=last)


def _inside(tags: Sequence[str]) -> Iterator[tuple[int, str]]:
    """State and type of every I-X."""
    for state, tag in enumerate(tags):
        letter, _, kind = tag.partition("-")
        if tag != "O" and (letter not in ("B", "I") or not kind):
            raise ValueError(f"tags[{state}]={tag!r} must be O, or B-TYPE or I-TYPE for some type")
        if letter == "I":
            if f"B-{kind}" not in tags:
                raise ValueError(f"tags has {tag!r} and no 'B-{kind}': a chunk of this type could not begin")
            yield state, kind


SCHEMES = {None: lambda tags: None, "BIO": bio_transitions, "BIOES": bioes_transitions}
"""Which labels may follow each other in a scheme, by its name; None allows all."""
