"""The commands ``torchssvm train``, ``tag`` and ``eval``: taggers from files to files, as by crfsuite."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torchssvm.core.arguments import needs
from torchssvm.datasets import Columns, TaggedSentences, chunk_scores, read_columns
from torchssvm.datasets.text.entity_features import entity_attributes
from torchssvm.datasets.text.tag_schemes import first_wrong, to_bio
from torchssvm.datasets.text.templates import BEGIN
from torchssvm.deployment import Decoder, batch_of_names, load_model

_BATCH = 256
_POS = "pos[0]="  # begins the names of features of parts of speech


def main(args: Sequence[str]) -> None:
    """The command line, beginning with the name of the command."""
    parser = argparse.ArgumentParser(
        "torchssvm",
        description="Train a tagger on a file, tag another file, measure it. A file has a token a line, its word in "
        "the first column and its tag in the last, and an empty line after each sentence.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train a tagger to a certified gap")
    train.add_argument("file", help="tokens with tags")
    train.add_argument("-m", "--model", required=True, help="the file of the trained model, replaced if it is there")
    train.add_argument("-e", "--test", help="tokens with tags, to measure the model by")
    train.add_argument("-c", "--C", type=float, help="weight of the loss (1)")
    train.add_argument("--tol", type=float, default=0.01, help="share of the objective that the gap may be (0.01)")
    train.add_argument("--min-count", type=int, default=1, help="leave out features that occur less often (1)")
    tag = commands.add_parser("tag", help="write the tokens of a file with their tags")
    tag.add_argument("-m", "--model", required=True, help="a file that train has written")
    tag.add_argument("file", nargs="?", default="-", help="tokens, without tags or with; - is standard input")
    measure = commands.add_parser("eval", help="measure a model by a file with tags")
    measure.add_argument("-m", "--model", required=True, help="a file that train has written")
    measure.add_argument("file", help="tokens with tags")
    for command in (train, tag, measure):
        command.add_argument("--pos", type=int, metavar="COLUMN", help="the column of parts of speech, from 0")
    given = parser.parse_args(args)
    try:
        {"train": _train, "tag": _tag, "eval": _eval}[given.command](given)
    except BrokenPipeError:  # as by head -1
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    except (OSError, ValueError) as error:
        parser.exit(1, f"torchssvm {given.command}: {error}\n")


def _train(given: argparse.Namespace) -> None:
    with needs("torchssvm train needs scikit-learn and scipy: pip install 'torchssvm[sklearn,deploy]'", "sklearn"):
        from torchssvm.estimators import ChainSVC
    sentences = _read(given.file, given.pos)
    tags = sentences.tags or []
    other = first_wrong(tags)
    if chunks := other is None:
        tags = to_bio(tags, sentences.offsets)
    test = None if given.test is None else _read(given.test, given.pos)
    svc = ChainSVC(
        C=given.C,
        tol=given.tol,
        min_count=given.min_count,
        transitions="BIO" if chunks else None,
        random_state=0,
        verbose=True,
    )
    svc.fit(_features(sentences), sentences.by_sentence(tags))
    svc.save(given.model)
    print(f"{given.model}: sentences {len(sentences)}, features {len(svc.vocabulary_)}, tags {len(svc.classes_)}")
    if other is not None:
        print(f"tags are taken as they are, not as chunks: {sentences.where(other)} has {tags[other]!r}")
    print(svc.certificate_)
    if test is not None:
        print(_measured(_load(given.model, test), test))


def _tag(given: argparse.Namespace) -> None:
    if given.file != "-":
        sentences = _read(given.file, given.pos, tags=False)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "standard input"
            path.write_bytes(sys.stdin.buffer.read())
            try:
                sentences = _read(path, given.pos, tags=False)
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), path.name)) from None
    words = sentences.by_sentence(sentences.words)
    for row, tags in zip(words, _predicted(_load(given.model, sentences), sentences), strict=True):
        print(*(f"{word}\t{tag}" for word, tag in zip(row, tags, strict=True)), "", sep="\n")


def _eval(given: argparse.Namespace) -> None:
    sentences = _read(given.file, given.pos)
    print(_measured(_load(given.model, sentences), sentences))


def _read(path: Any, pos: int | None, tags: bool = True) -> TaggedSentences:
    return read_columns(path, Columns(word=0, tag=-1 if tags else None, pos=pos), scheme=None)


def _features(sentences: TaggedSentences) -> list[Sequence[list[str]]]:
    """The names of the features of each token: its spelling, its neighbours' and parts of speech, if they were read."""
    attributes = entity_attributes(sentences)
    return sentences.by_sentence([attributes.of(token) for token in range(len(sentences.words))])


def _load(path: str, sentences: TaggedSentences) -> Decoder:
    model = load_model(path)
    names = model.vocabulary or {}
    if BEGIN not in names:
        raise ValueError(f"{path} has a model of other features: train it by torchssvm train")
    trained, given = any(name.startswith(_POS) for name in names), set(sentences.pos) != {"_"}
    if trained != given:
        advice = "name their column, as --pos 1" if trained else "leave out --pos"
        raise ValueError(f"{path} was trained with{'' if trained else 'out'} parts of speech: {advice}")
    return model


def _predicted(model: Decoder, sentences: TaggedSentences) -> Iterator[list[str]]:
    features, labels, vocabulary = _features(sentences), model.labels or [], model.vocabulary or {}
    for first in range(0, len(features), _BATCH):
        states = model(*batch_of_names(features[first : first + _BATCH], vocabulary))
        yield from ([labels[state] for state in row if state >= 0] for row in states.tolist())


def _measured(model: Decoder, sentences: TaggedSentences) -> str:
    """The table of chunks, or the share of right tags where tags are not of chunks."""
    predicted, tags = list(_predicted(model, sentences)), sentences.tags or []
    if first_wrong([*tags, *(model.labels or [])]) is None:
        return str(chunk_scores(sentences.by_sentence(tags), predicted))
    right = sum(a == b for a, b in zip(tags, chain.from_iterable(predicted), strict=True))
    return f"{100 * right / len(tags):.2f} % of {len(tags)} tags are right"
