"""Trees: the structure and its head."""

import pytest
import torch
from cases.head_cases import HeadTestCase
from cases.plain_structures import LabelledTokensCase

from torchssvm import LinearTree, Potentials, Tree

PARENT = [-1, 0, 0, 1]


class TestTree(LabelledTokensCase):
    states = 2
    parent = PARENT
    longest = len(PARENT)
    tokens, pairs, first_pair = "node", "edge", 0

    def make_structure(self):
        return Tree(self.states, self.parent, shared=self.shared, **self.options)

    def reference_score(self, potentials, labeling):
        states = labeling.tolist()
        total = sum(float(potentials["node"][v, state]) for v, state in enumerate(states))
        for v, above in enumerate(self.parent[: len(states)]):
            if above >= 0:
                pairs = potentials["edge"] if self.shared else potentials["edge"][v]
                total += float(pairs[states[above], states[v]])
        return total

    def reference_loss(self, structure, labeling, target):
        share = super().reference_loss(structure, labeling, target)
        return share if structure.normalize else share * len(target)

    def bad_potentials(self, potentials):
        yield from super().bad_potentials(potentials)
        node, edge = potentials.tensors.values()
        yield Potentials({"node": torch.zeros(3, 9, self.states, dtype=node.dtype), "edge": edge})


@pytest.mark.variant
class TestTreeEdges(TestTree):
    shared = False


@pytest.mark.variant
class TestTreeUnpadded(TestTree):
    """Two trees with nodes in any order."""

    parent = [3, -1, 4, -1, 3]  # noqa: RUF012
    longest = 5
    padded = False
    options = {"normalize": False}  # noqa: RUF012


@pytest.mark.variant
class TestTreeEdgesUnpadded(TestTree):
    parent = [2, 2, -1]  # noqa: RUF012
    longest = 3
    states = 3
    padded = False
    shared = False


@pytest.mark.parametrize("parent", [[1, 0], [-1, 2], [], [[-1, 0]], [-1.0, 0.0]])
def test_trees_that_are_none_are_refused(parent):
    with pytest.raises(ValueError, match="parent"):
        Tree(2, parent)


def test_examples_must_be_trees_without_the_nodes_they_lack():
    structure = Tree(2, [2, 2, -1, 0])
    potentials = Potentials({"node": torch.zeros(2, 4, 2), "edge": torch.zeros(2, 2, 2)}, torch.tensor([4, 2]))
    with pytest.raises(ValueError, match="lengths has 2"):
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


@pytest.mark.variant
class TestLinearTreeEdges(TestLinearTree):
    shared = False


@pytest.mark.variant
class TestLinearTreeUnpaddedWithoutBias(TestLinearTree):
    bias = False
    lengths = False


def test_head_and_structure_must_fit():
    for structure in (Tree(4, PARENT), Tree(3, [-1, 0, 1, 2]), Tree(3, PARENT, shared=False)):
        with pytest.raises(ValueError, match="structure"):
            LinearTree(2, 3, PARENT, structure=structure)
    fitting = Tree(3, PARENT, normalize=False)
    assert LinearTree(2, 3, PARENT, structure=fitting).structure is fitting


def test_a_node_without_a_label_has_no_parts_neither_alone_nor_with_its_children():
    parts = Tree(2, [-1, 0, 0]).parts(torch.tensor([[-1, 1, 0]]))
    assert parts["node"].tolist() == [[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]
    assert not parts["edge"].any()
