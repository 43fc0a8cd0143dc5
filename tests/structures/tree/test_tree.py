"""Trees: the structure and its head."""

from __future__ import annotations

import pytest
import torch
from head_cases import HeadTestCase
from problems import Problem
from structure_cases import StructureTestCase

from torchssvm import Batch, DualState, LinearTree, Potentials, Tree, check

PARENT = [-1, 0, 0, 1]


class TestTree(StructureTestCase):
    states = 2
    parent = PARENT
    shared = True
    padded = True
    options: dict = {}  # noqa: RUF012

    def make_structure(self):
        return Tree(self.states, self.parent, shared=self.shared, **self.options)

    def make_potentials(self, random, batch, integers, dtype):
        lengths = torch.randint(1, len(self.parent) + 1, (batch,), generator=random)
        longest = int(lengths.max()) if self.padded else len(self.parent)
        pairs = (self.states, self.states)

        def draw(*shape):
            if integers:
                return torch.randint(-1, 2, shape, generator=random).to(dtype)
            return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)

        edge = (batch, *pairs) if self.shared else (batch, longest, *pairs)
        tensors = {"node": draw(batch, longest, self.states), "edge": draw(*edge)}
        if not self.padded:
            return Potentials(tensors)
        return Potentials(tensors, lengths, ragged={"node": 0} | ({} if self.shared else {"edge": 0}))

    def random_target(self, structure, potentials, random):
        shape = potentials["node"].shape[:2]
        labels = torch.randint(0, self.states, shape, generator=random)
        if potentials.lengths is None:
            return labels
        garbage = torch.randint(-2, self.states + 5, shape, generator=random)
        return torch.where(torch.arange(shape[1]) < potentials.lengths.unsqueeze(1), labels, garbage)

    def reference_score(self, potentials, labeling):
        states = labeling.tolist()
        total = sum(float(potentials["node"][v, state]) for v, state in enumerate(states))
        for v, above in enumerate(self.parent[: len(states)]):
            if above >= 0:
                pairs = potentials["edge"] if self.shared else potentials["edge"][v]
                total += float(pairs[states[above], states[v]])
        return total

    def reference_loss(self, structure, labeling, target):
        wrong = sum(a != b for a, b in zip(labeling.tolist(), target.tolist(), strict=True))
        return wrong / len(target) if structure.normalize else wrong

    def count(self, structure, potentials, row):
        length = potentials["node"].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        return self.states**length

    def bad_targets(self, potentials, target):
        last = int(potentials.lengths[1]) - 1 if self.padded else target.shape[1] - 1
        for label in (self.states, -1):
            wrong = target.clone()
            wrong[1, last] = label
            yield wrong, f"label {label} .*row 1"
        yield target[:, :-1], "target must be int64"
        yield target[:2], "target must be int64"
        yield target.double(), "float64"

    def bad_potentials(self, potentials):
        node, edge = potentials["node"], potentials["edge"]
        yield Potentials(node)
        yield Potentials({"node": node, "edges": edge})
        yield Potentials({"node": node[:, :, 1:], "edge": edge})
        yield Potentials({"node": node, "edge": edge[..., 1:]})
        yield Potentials({"node": node.unsqueeze(3), "edge": edge})
        yield Potentials({"node": node, "edge": edge.unsqueeze(1)})
        yield Potentials({"node": torch.zeros(3, 9, self.states, dtype=node.dtype), "edge": edge})


@pytest.mark.variant
class TestTreeEdges(TestTree):
    shared = False


@pytest.mark.variant
class TestTreeUnpadded(TestTree):
    """Two trees with nodes in any order."""

    parent = [3, -1, 4, -1, 3]  # noqa: RUF012
    padded = False
    options = {"normalize": False}  # noqa: RUF012


@pytest.mark.variant
class TestTreeEdgesUnpadded(TestTree):
    parent = [2, 2, -1]  # noqa: RUF012
    states = 3
    padded = False
    shared = False


def test_trees_that_are_none_are_refused():
    for parent, words in [
        ([1, 0], "cycle"),
        ([-1, 2], "got 2 for node 1"),
        ([], "parent must be a list"),
        ([[-1, 0]], "parent must be a list"),
        ([-1.0, 0.0], "parent must be a list"),
    ]:
        with pytest.raises(ValueError, match=words):
            Tree(2, parent)
    with pytest.raises(ValueError, match="num_states=0"):
        Tree(0, [-1])


def test_examples_must_be_trees_without_the_nodes_they_lack():
    structure = Tree(2, [2, 2, -1, 0])
    potentials = Potentials({"node": torch.zeros(2, 4, 2), "edge": torch.zeros(2, 2, 2)}, torch.tensor([4, 2]))
    with pytest.raises(ValueError, match="an example has 2 nodes, and the parent of node 0 is 2"):
        structure.check_target(torch.zeros(2, 4, dtype=torch.int64), potentials)


class TestLinearTree(HeadTestCase):
    bias = True
    shared = True
    lengths = True

    def make_head(self):
        return LinearTree(2, 3, PARENT, bias=self.bias, shared=self.shared)

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 2, generator=random, dtype=torch.float64)
        return (x, torch.randint(1, 5, (batch,), generator=random)) if self.lengths else (x,)

    def reference(self, head, x):
        rows = [sum(x[v, f] * head.node[:, f] for f in range(2)) for v in range(len(x))]
        rows = [row + head.bias if self.bias else row for row in rows]
        return {"node": torch.stack(rows), "edge": head.edge if self.shared else head.edge[: len(x)]}

    def bad_inputs(self, inputs):
        x, *lengths = inputs
        yield (x[:, :, :1], *lengths), r"x must be \[B, N, 2\]"
        yield (x[0], *lengths), r"x must be \[B, N, 2\]"
        yield (torch.zeros(3, 5, 2, dtype=torch.float64), *lengths), "N at most 4"
        for wrong in (0, -1, 5):
            yield (x, torch.tensor([1, wrong, 1])), f"lengths must lie between 1 and .*{wrong}"


@pytest.mark.variant
class TestLinearTreeEdges(TestLinearTree):
    shared = False


@pytest.mark.variant
class TestLinearTreeUnpaddedWithoutBias(TestLinearTree):
    bias = False
    lengths = False


def test_head_and_structure_must_fit():
    for structure in (Tree(4, PARENT), Tree(3, [-1, 0, 1, 2]), Tree(3, PARENT, shared=False)):
        with pytest.raises(ValueError, match="does not fit num_states=3"):
            LinearTree(2, 3, PARENT, structure=structure)
    own = Tree(3, PARENT, normalize=False)
    assert LinearTree(2, 3, PARENT, structure=own).structure is own


def problem(shared, ragged, seed=3, n=5, lam=0.5):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, 2, generator=random, dtype=torch.float64)
    y = torch.randint(0, 2, (n, 4), generator=random)
    lengths = torch.tensor([4, 2, 3, 1, 4]) if ragged else None
    if lengths is not None:
        y = y.masked_fill(torch.arange(4) >= lengths.unsqueeze(1), -1)
    return Problem(LinearTree(2, 2, PARENT, shared=shared).double(), x, y, lengths, lam)


@pytest.mark.parametrize("shared", [True, False])
def test_the_checks_for_users_pass(shared):
    trees = problem(shared, True)
    batch = trees.batch(range(5))
    assert isinstance(batch, Batch)
    report = check(trees.head, trees.structure, batch)
    assert report.ok, str(report)
    DualState.for_head(trees.head, 5, 0.1)
