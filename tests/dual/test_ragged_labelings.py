"""``Labelings()`` of examples of different sizes: blocks without a labeling are never scored by those of others."""

from __future__ import annotations

import pytest
import torch
from cases.pairwise_graphs import PairwiseProblem
from cases.problems import chain, rng

from torchssvm import BCFW, BlockGap, Corrective, DualState, Labelings, LinearRanking, Pairwise, Ranking, certify
from torchssvm.core.batch import Batch, apply_head
from torchssvm.steps import Hybrid
from torchssvm.structures.ranking import PairSwaps

N = 4


class Lists:
    """Lists of 2 to 5 documents."""

    def __init__(self, measure):
        self.lengths = torch.tensor([2, 5, 3, 4])
        beyond = torch.arange(5) >= self.lengths.unsqueeze(1)
        self.x = torch.randn(N, 5, 3, generator=rng(0), dtype=torch.float64)
        self.y = torch.tensor([[1, 0, 0, 1, 0]]).expand(N, 5).masked_fill(beyond, -1)
        self.head = LinearRanking(3, structure=Ranking(measure)).double()

    def batch(self, rows):
        index = torch.tensor(rows)
        size = int(self.lengths[index].max())
        return Batch(self.x[index, :size], self.y[index, :size], index, self.lengths[index])


PROBLEMS = {
    "swaps": lambda: Lists(PairSwaps()),
    "graphs": lambda: PairwiseProblem(3, n=N),
    "chains": lambda: chain(3, n=N),
}


@pytest.mark.parametrize("direction", [Pairwise(), Corrective(), Hybrid()], ids=repr)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_new_blocks_beside_old_ones_take_the_steps_that_they_take_alone(kind, direction):
    beside, alone = (train(PROBLEMS[kind](), direction, together) for together in (True, False))
    assert beside == pytest.approx(alone, rel=1e-12)


def train(problem, direction, together):
    """The block gaps after a step on the shortest example: of all in one batch, or of that example alone."""
    order = problem.lengths.argsort().tolist()
    dual = DualState.for_head(problem.head, N, 0.1, storage=Labelings())
    loss, optimizer = BlockGap(dual, direction), BCFW(problem.head.parameters(), dual)

    def gaps(rows):
        batch = problem.batch(rows)
        return loss(apply_head(problem.head, batch), batch.y, batch.index)

    def step(rows):
        optimizer.zero_grad()
        gaps(rows).backward()
        optimizer.step()

    step(order[:1])
    with torch.no_grad():
        result = float(gaps(order) if together else gaps(order[:1]) + gaps(order[1:]))
    for _ in range(3):
        step(order)
    assert certify(problem.head, dual, [problem.batch(list(range(N)))]).drift < 1e-12
    return result
