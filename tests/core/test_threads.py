"""The pool of threads: every item once, ranges of about equal work, errors, two callers, nesting, fork."""

import itertools
import os
import threading
import time

import numpy as np
import pytest
import torch
from cases.problems import examples
from hypothesis import example, given
from hypothesis import strategies as st

from torchssvm import solve
from torchssvm.core.threads import PAYS, run_in_chunks, split, torch_threads
from torchssvm.datasets import PaddedDataset
from torchssvm.dual import DualState
from torchssvm.structures import LinearChain


@pytest.fixture(autouse=True)
def threads(set_threads):
    set_threads(3)


SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=40)


@examples(50)
@given(sizes=SIZES, parts=st.integers(1, 7), grain=st.sampled_from([0.0, 20.0, 100.0]))
@example(sizes=[10] * 20, parts=2, grain=60.0)
def test_ranges_cover_all_items_and_share_the_work(sizes, parts, grain):
    bounds = split(sizes, parts, grain)
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert len(bounds) - 1 <= parts
    if grain and len(bounds) > 2:
        parts = min(parts, int(sum(sizes) / grain))
    share = (sum(sizes) - grain) / parts if len(bounds) > 2 else sum(sizes)
    assert sum(sizes[: bounds[1]]) <= share + grain + max(sizes)
    for a, b in itertools.pairwise(bounds[1:]):
        assert sum(sizes[a:b]) <= share + max(sizes)


@examples(20)
@given(sizes=SIZES, grain=st.sampled_from([0.0, 10.0, 200.0]))
def test_every_item_is_done_once_and_results_come_in_order(sizes, grain):
    seen = np.zeros(len(sizes), np.int64)

    def function(begin, end, index):
        seen[begin:end] += 1
        return begin, end, index

    result = run_in_chunks(function, sizes, grain=grain)
    assert seen.tolist() == [1] * len(sizes)
    assert result[0][0] == 0
    assert result[-1][1] == len(sizes)
    assert [index for _, _, index in result] == list(range(len(result)))
    assert all(a[1] == b[0] for a, b in itertools.pairwise(result))
    assert len(result) <= max(1, sum(sizes) / grain if grain else 3)


def test_several_threads_take_part():
    barrier = threading.Barrier(3)  # passed only if three ranges run at once

    def function(begin, end, index):
        barrier.wait(timeout=20)
        return threading.get_ident()

    assert len(set(run_in_chunks(function, [1, 1, 1]))) == 3


def test_one_thread_does_all_where_torch_has_one():
    torch.set_num_threads(1)
    assert run_in_chunks(lambda begin, end, index: (begin, end, index), [1] * 10) == [(0, 10, 0)]


def test_the_first_error_is_raised_after_all_ranges_are_done():
    done = []

    def function(begin, end, index):
        if index > 0:
            time.sleep(0.01 * (3 - index))
            raise ValueError(f"range {index}")
        done.append(index)

    with pytest.raises(ValueError, match="range 1"):
        run_in_chunks(function, [1, 1, 1])
    assert done == [0]
    assert run_in_chunks(lambda *_: 7, [1, 1, 1]) == [7, 7, 7]  # the pool lives on


def test_a_call_from_inside_is_not_split_again():
    inner = run_in_chunks(lambda *_: run_in_chunks(lambda *result: result, [1] * 9), [1, 1, 1])
    assert inner == [[(0, 9, 0)]] * 3


def test_two_threads_call_at_once():
    failures = []

    def caller():
        for round_ in range(200):
            total = sum(run_in_chunks(lambda a, b, _: sum(range(a, b)), [1] * 50))
            if total != 1225:
                failures.append(round_)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in callers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_its_own_threads():
    run_in_chunks(lambda *_: None, [1, 1, 1])
    child = os.fork()
    if child == 0:
        barrier = threading.Barrier(3)
        try:
            run_in_chunks(lambda *_: barrier.wait(timeout=20), [1, 1, 1])
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_torch_stays_on_the_calling_thread_unless_the_work_pays():
    with torch_threads():
        assert torch.get_num_threads() == 1
        with torch_threads(PAYS):
            assert torch.get_num_threads() == 3
        assert len(run_in_chunks(lambda begin, end, _: (begin, end), [1] * 6)) == 3
    assert torch.get_num_threads() == 3


def test_threads_of_torch_come_back_after_an_error():
    with pytest.raises(KeyError), torch_threads():
        raise KeyError
    assert torch.get_num_threads() == 3


def test_a_step_of_the_compiled_loop_runs_torch_on_one_thread(monkeypatch):
    seen = []
    accept = DualState.remember_weights
    monkeypatch.setattr(
        DualState, "remember_weights", lambda *args: (seen.append(torch.get_num_threads()), accept(*args))
    )
    data = PaddedDataset(torch.randn(4, 3, 2), torch.tensor([[0, 1, 0]] * 4), torch.full((4,), 3))
    solve(LinearChain(2, 2), data, 0.1, max_passes=3.0, progress=False)
    assert set(seen) == {1}
