"""Problems of every kind that is compiled."""

from __future__ import annotations

import torch
from problems import PROBLEMS, Problem, rng

from torchssvm import Transitions


def sparse(problem: Problem) -> Problem:
    """The same problem with most features zero: they are packed as lists."""
    problem.x[torch.rand(problem.x.shape, generator=rng(7)) < 0.7] = 0.0
    return problem


COST = torch.tensor([[0.0, 1.0, 0.5], [2.0, 0.0, 0.25], [1.0, 3.0, 0.0]])
TRANSITIONS = Transitions(
    torch.tensor([[True, True, False], [True, True, True], [False, True, True]]),
    first=torch.tensor([True, True, False]),
    last=torch.tensor([False, True, True]),
)
KINDS = {
    "multiclass": lambda **o: PROBLEMS["multiclass"](4, n=8, lam=0.05, **o),
    "multiclass, costs, no bias": lambda **o: PROBLEMS["multiclass"](4, n=8, lam=0.05, cost=COST, bias=False, **o),
    "multiclass, sparse": lambda **o: sparse(PROBLEMS["multiclass"](4, n=8, features=9, lam=0.05, **o)),
    "chain": lambda **o: PROBLEMS["chain"](5, n=8, states=3, longest=4, lam=0.05, **o),
    "chain, sparse, nine states": lambda **o: sparse(
        PROBLEMS["chain"](5, n=8, features=9, states=9, longest=4, lam=0.05, **o)
    ),
    "chain, transitions": lambda **o: PROBLEMS["chain"](
        5, n=8, states=3, longest=4, lam=0.05, transitions=TRANSITIONS, **o
    ),
    "chain, no bias, no boundary": lambda **o: PROBLEMS["chain"](
        5, n=8, states=3, longest=4, lam=0.05, bias=False, boundary=False, ragged=False, **o
    ),
}
