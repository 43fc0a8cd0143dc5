"""Copies on a device remember the CPU tensor that they were made from, until one of them is written to."""

import gc
import weakref

import pytest
import torch

from torchssvm import Batch
from torchssvm.core.operators import constant, known, on_host, upload


def test_cpu_tensors_are_on_the_host():
    numbers = torch.arange(3)
    assert on_host(numbers) is numbers
    assert upload(numbers, "cpu") is numbers


@pytest.mark.cuda
def test_copies_remember_what_they_were_made_from(cuda):
    numbers = torch.arange(3)
    batch = Batch(torch.zeros(3, 2), numbers, numbers, numbers).to(cuda)
    assert on_host(batch.index) is numbers
    assert on_host(batch.y + 1).tolist() == [1, 2, 3]
    batch.index[0] = 5
    assert on_host(batch.index).tolist() == [5, 1, 2]
    there = upload(numbers, cuda)
    numbers[0] = 7  # the copy keeps its numbers
    assert on_host(there).tolist() == [0, 1, 2]
    read = on_host(there)
    assert on_host(there) is read
    assert on_host(known(there + 1, read + 1)).tolist() == [1, 2, 3]


@pytest.mark.cuda
def test_copies_of_constants_follow_them_and_go_with_them(cuda):
    there, numbers = torch.device("cuda", 0), torch.zeros(3)
    with torch.inference_mode():
        first = constant(numbers, there)
        fleeting = torch.zeros(3)
        constant(fleeting, there)
        fleeting[0] = 2.0  # no version counts this write
        assert constant(fleeting, there).tolist() == [2.0, 0.0, 0.0]
    assert constant(numbers, there) is first
    weights = torch.ones(3, device=there, requires_grad=True)
    (weights * first).sum().backward()  # it is no inference tensor
    numbers[0] = 5.0
    assert constant(numbers, there).tolist() == [5.0, 0.0, 0.0]
    references = weakref.ref(numbers), weakref.ref(constant(numbers, there))
    del numbers
    gc.collect()
    assert [each() for each in references] == [None, None]
