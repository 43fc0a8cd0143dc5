"""Exact passes whose scores are float64, because float32 is too coarse for the primal."""

from __future__ import annotations

import torch
from cases.problems import through_a_file

from torchssvm import Batch, CompiledBCFW, DualState, LinearMulticlass, MeanParts
from torchssvm.solvers.compiled import exact_pass


def test_a_pass_has_the_same_bits_whichever_dtype_the_last_one_had(monkeypatch):
    seen: list[torch.dtype] = []
    decode = exact_pass.exact_ranges

    def noted(begin, end, ranges, examples, model, *others):
        if begin == 0:  # the first thread's
            seen.append(torch.from_numpy(model.emission).dtype)
        return decode(begin, end, ranges, examples, model, *others)

    monkeypatch.setattr(exact_pass, "exact_ranges", noted)
    y = torch.arange(30) % 3
    x = torch.nn.functional.one_hot(y, 3) + 0.1 * torch.rand(30, 3, generator=torch.Generator().manual_seed(0))
    head, batches = LinearMulticlass(3, 3), [Batch(x, y, torch.arange(30))]
    dual = DualState.for_head(head, 30, 1e-4, storage=MeanParts())  # separable: the primal falls to some 0.003
    loop = CompiledBCFW(head, dual, batches)
    early = through_a_file(dual.state_dict())
    loop.step(3000)
    late = through_a_file(dual.state_dict())
    passes = []
    for state in (early, late, early, late, late):
        dual.load_state_dict(state)
        seen.clear()
        certificate = loop.certify()
        passes.append(list(seen))
        dual.load_state_dict(state)
        assert CompiledBCFW(head, dual, batches).certify() == certificate
    narrow, wide = torch.float32, torch.float64
    assert passes == [[narrow], [narrow, wide], [wide, narrow], [narrow, wide], [wide]]
