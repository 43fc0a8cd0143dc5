"""Rows of the dual blocks keep what they hold while others come."""

import pytest
import torch

from torchssvm.dual.mean_parts import RowBuffer


@pytest.mark.parametrize("trailing", [(), (3,), (2, 2)])
def test_rows_that_are_there_stay_when_the_buffer_grows(trailing):
    buffer = RowBuffer(4, torch.float64, torch.device("cpu"))
    given = []
    for example, rows in enumerate((2, 9, 1, 30)):
        values = torch.randn(1, rows, *trailing, dtype=torch.float64)
        given.append(values)
        buffer.add(torch.tensor([example]), torch.tensor([rows]), values, torch.ones(1, dtype=torch.float64))
        for before, stored in enumerate(given):
            count = torch.tensor([stored.shape[1]])
            result, wrong = buffer.read(torch.tensor([before]), count, stored.shape[1], trailing)
            assert wrong < 0
            assert torch.equal(result.view(stored.shape), stored)
