"""Chunk scores against a hand-worked example, against chunks by their definition, and against seqeval."""

import pytest
from cases.problems import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchssvm.datasets import Chunk, chunk_scores, chunks

TAGS = ["O", *(f"{letter}-{kind}" for letter in "BI" for kind in ("NP", "VP", "A-B"))]
sequences = st.lists(st.sampled_from(TAGS), max_size=8)
pairs = st.lists(st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), max_size=8), max_size=5)


def columns(sentences):
    return [[a for a, _ in s] for s in sentences], [[b for _, b in s] for s in sentences]


def test_chunks_of_a_sentence():
    tags = ["B-NP", "I-NP", "B-NP", "I-VP", "I-VP", "O", "I-NP", "O", "O", "B-VP"]
    assert chunks(tags) == [(0, 2, "NP"), (2, 3, "NP"), (3, 5, "VP"), (6, 7, "NP"), (9, 10, "VP")]
    assert chunks([]) == []
    assert chunks(["O"]) == []
    assert chunks(["I-NP"]) == [Chunk(0, 1, "NP")]


@pytest.mark.parametrize("tag", ["NP", "B", "B-", "-NP", "X-NP", "", "o", "O-NP"])
def test_other_tags_are_refused(tag):
    with pytest.raises(ValueError, match=rf"tags\[1\]='{tag}'"):
        chunks(["O", tag])


@pytest.mark.parametrize(
    "tags", [["B-NP", "E-NP", "S-NP", "O"], ["B-NP", "L-NP", "U-NP", "O"], ["I-NP", "I-NP", "B-NP", "O"]]
)
def test_other_schemes_are_taken(tags):
    assert chunks(tags) == [(0, 2, "NP"), (2, 3, "NP")]
    assert chunk_scores([tags], [["B-NP", "I-NP", "O", "O"]]).overall.f1 == pytest.approx(2 / 3)


def by_definition(tags):
    """All spans of one type that cannot be longer to the right, and begin where a chunk begins."""

    def kind(place):
        return tags[place][2:] if 0 <= place < len(tags) and tags[place] != "O" else None

    def begins(place):
        return tags[place].startswith("B-") or (tags[place].startswith("I-") and kind(place - 1) != kind(place))

    def ends(place):
        return place == len(tags) or not tags[place].startswith("I-") or kind(place) != kind(place - 1)

    return [
        (a, b, kind(a))
        for a in range(len(tags))
        if begins(a)
        for b in range(a + 1, len(tags) + 1)
        if ends(b) and not any(ends(c) for c in range(a + 1, b))
    ]


@examples(40)
@given(sequences)
def test_chunks_by_their_definition(tags):
    assert chunks(tags) == by_definition(tags)


def test_a_hand_worked_example():
    true = [["B-NP", "I-NP", "B-VP", "B-NP", "O"], ["B-NP", "B-NP", "O"]]
    result = [["B-NP", "I-NP", "B-VP", "I-VP", "B-PP"], ["B-NP", "I-NP", "I-VP"]]
    scores = chunk_scores(true, result)
    # true: NP 0-2, VP 2-3, NP 3-4; NP 0-1, NP 1-2.  found: NP 0-2, VP 2-4, PP 4-5; NP 0-2, VP 2-3.  Common: NP 0-2.
    assert (scores.overall.correct, scores.overall.predicted, scores.overall.true) == (1, 5, 5)
    assert scores.overall.precision == scores.overall.recall == scores.overall.f1 == pytest.approx(0.2)
    assert list(scores.by_type) == ["NP", "PP", "VP"]
    noun, preposition, verb = scores.by_type.values()
    assert (noun.precision, noun.recall, noun.f1) == pytest.approx((1 / 2, 1 / 4, 1 / 3))
    assert (preposition.precision, preposition.recall, preposition.f1) == (0.0, 0.0, 0.0)
    assert (verb.correct, verb.predicted, verb.true) == (0, 2, 1)
    assert (scores.tokens, scores.wrong_tokens, scores.token_error) == (8, 4, 0.5)


@examples(40)
@given(pairs)
def test_invariants(sentences):
    true, result = columns(sentences)
    scores, back, same = chunk_scores(true, result), chunk_scores(result, true), chunk_scores(true, true)
    assert (scores.overall.precision, scores.overall.recall) == (back.overall.recall, back.overall.precision)
    assert scores.overall.f1 == back.overall.f1 <= 1.0
    for name in ("correct", "predicted", "true"):
        assert sum(getattr(one, name) for one in scores.by_type.values()) == getattr(scores.overall, name)
    assert same.overall.f1 == float(same.overall.true > 0)
    assert same.token_error == 0.0


@settings(deadline=None)  # the import is slow
@given(pairs)
def test_seqeval_counts_the_same(sentences):
    metrics = pytest.importorskip("seqeval.metrics")
    true, result = columns([s for s in sentences if s])
    scores = chunk_scores(true, result)
    if not scores.by_type:  # of no chunk at all seqeval can make nothing
        return
    report = metrics.classification_report(true, result, output_dict=True, zero_division=0)
    whole = (scores.overall.precision, scores.overall.recall, scores.overall.f1)
    their = report["micro avg"]
    assert whole == pytest.approx((their["precision"], their["recall"], their["f1-score"]))
    for name, one in scores.by_type.items():
        its = report[name]
        assert (one.precision, one.recall, one.f1) == pytest.approx((its["precision"], its["recall"], its["f1-score"]))
        assert one.true == its["support"]


def test_sentences_must_fit():
    for true, predicted in (([["O"]], [["O"], ["O"]]), ([[], ["O"]], [[], ["O", "O"]])):
        with pytest.raises(ValueError, match="true"):
            chunk_scores(true, predicted)
    assert chunk_scores([], []).overall.f1 == chunk_scores([], []).token_error == 0.0
