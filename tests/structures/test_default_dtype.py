"""Losses and oracles compute in float64, whatever torch's default dtype is."""

import pytest
import torch
from cases.one_of_each import KINDS
from cases.problems import rng

from torchssvm.core.max_oracle import find_corner


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_dtype_changes_no_bit(kind):
    results = []
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            structure, potentials, target = KINDS[kind](rng(0))
            target = structure.check_target(target, potentials)
            corner = find_corner(structure, potentials, target)
            numbers = [corner.hinge, corner.loss, corner.score, corner.bound]
            numbers += structure._difference(corner.labeling, target, potentials).values()
            try:
                delta, constant = structure.loss_potentials(target)
                numbers += [constant, *(delta.values() if isinstance(delta, dict) else [delta])]
            except NotImplementedError:
                pass
            results.append(numbers)
    finally:
        torch.set_default_dtype(before)
    for single, double in zip(*results, strict=True):
        assert single.dtype == torch.float64
        assert torch.equal(single, double)
