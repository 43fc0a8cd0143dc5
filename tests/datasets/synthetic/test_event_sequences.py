"""Synthetic sequences of events."""

import itertools

import pytest
import torch

from torchssvm import Segments
from torchssvm.datasets import EventSequences


def test_events_are_segments_and_the_same_each_time():
    events, again, test = (EventSequences(split, num_sequences=9, length=33) for split in ("train", "train", "test"))
    assert torch.equal(events.x, again.x)
    assert not torch.equal(events.x, test.x)
    structure = Segments(5, 10)
    for spans in structure.spans(events.y):
        assert spans[-1][1] == 33
        assert all(end - start <= (10 if label % 2 else 5) for start, end, label in spans)
        assert all(a[2] != b[2] for a, b in itertools.pairwise(spans))
    clean = EventSequences(num_sequences=2, noise=0.0)
    assert len(clean.x.flatten(0, 1).unique(dim=0)) == 5


@pytest.mark.parametrize(
    "wrong",
    [{"split": "all"}, {"num_sequences": 0}, {"length": 1}, {"num_labels": 2}, {"max_duration": 3}, {"noise": -1.0}],
)
def test_what_makes_no_events_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EventSequences(**wrong)
