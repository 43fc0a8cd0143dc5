"""Max-marginals by decoding once more: scores that forbid, known scores, structures around others, and refusals."""

import math

import pytest
import torch
from cases.problems import rng
from cases.torch_struct_cases import CASES

from torchssvm import (
    Arborescence,
    Chain,
    Decisions,
    GraphCut,
    HiddenStates,
    Matching,
    Multilabel,
    PairwiseGraph,
    Potentials,
    SlackRescaling,
    Structure,
)
from torchssvm.core.potentials import conform
from torchssvm.structures.arborescence import Projective
from torchssvm.structures.decisions import DecisionPotentials, ShortestPath
from torchssvm.structures.graph_cut import GraphPotentials, RoofDual
from torchssvm.structures.multilabel import MessagePassing
from torchssvm.structures.pairwise_graph import PairwisePotentials, TreeReweighted

TRIANGLE = torch.tensor([[0, 1], [1, 2], [2, 0]]).expand(3, -1, -1)


def draw(*shape):
    return torch.randn(shape, generator=rng(3), dtype=torch.float64)


def label_sets():
    return Multilabel(4), Potentials({"unary": draw(3, 4), "pairwise": draw(3, 6)})


def graphs(oracle=None):
    return PairwiseGraph(2, oracle), PairwisePotentials(draw(3, 3, 2), draw(3, 3, 2, 2), TRIANGLE)


def assert_margins(structure, potentials, outputs):
    """Against all outputs, with known scores; parts that an output has not add nothing, not even an infinite score."""
    known = structure.known_scores(potentials) or {}
    (name, _), present = next(iter(potentials.tensors.items())), structure._state_parts[1]
    values, has = [], []
    for output in outputs:
        parts = conform(structure.parts(output), potentials, "parts")
        scores = {key: stored + known.get(key, 0.0) for key, stored in potentials.tensors.items()}
        terms = [torch.where(part == 0, 0.0, part * scores[key]).flatten(1).sum(1) for key, part in parts.items()]
        values.append(sum(terms))
        has.append(parts[name] == present)
    has = torch.stack(has)
    each = torch.stack(values).view(*has.shape[:2], *[1] * (has.ndim - 2))
    best, without = (torch.where(where, each, -torch.inf).amax(0) for where in (has, ~has))
    assert bool((best > -1e20).flatten(1).any(1).all())  # not all outputs are forbidden
    torch.testing.assert_close(structure.max_marginals(potentials), best - without, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    ("made", "low"),
    [
        ((Matching(), Potentials(draw(3, 3, 3))), -math.inf),
        ((Matching(), Potentials(draw(3, 3, 3))), -1e30),
        ((Arborescence(), Potentials(draw(3, 3, 4))), -math.inf),
        ((Arborescence(Projective()), Potentials(draw(3, 3, 4))), -1e30),
        ((Arborescence(num_labels=2), Potentials(draw(3, 3, 4, 2))), -math.inf),
        ((Arborescence(Projective(), num_labels=2), Potentials(draw(3, 3, 4, 2))), -1e30),
        (label_sets(), -1e30),
        (label_sets(), -math.inf),
        (graphs(), -1e30),
        (graphs(), -math.inf),
    ],
    ids=lambda case: str(case)[:24],
)
def test_scores_that_forbid_leave_the_margins_of_the_others_as_they_are(made, low):
    structure, potentials = made
    name, tensor = next(iter(potentials.tensors.items()))
    changed = tensor.clone()
    changed.flatten(1)[0, 1] = changed.flatten(1)[1, -2] = low
    potentials = potentials.replace({**potentials.tensors, name: changed})
    assert_margins(structure, potentials, list(structure.enumerate(potentials)))


def test_known_costs_count():
    structure = Decisions(ShortestPath.grid(2, 3))
    potentials = DecisionPotentials(draw(4, 7), fixed=5.0 * draw(4, 7).flip(0))
    assert_margins(structure, potentials, list(structure.enumerate(potentials)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_events_of_torch_struct(case):
    structure, potentials = case.structure, case.draw(7)
    margins = structure.max_marginals(potentials)
    for row in range(3):
        box = tuple(slice(n) for n in case.shape(int(potentials.lengths[row])))
        alone = Potentials(potentials.single[row][box].unsqueeze(0))
        outputs = case.outputs(int(potentials.lengths[row]))
        assert_margins(structure, alone, [output.unsqueeze(0) for output in outputs])
        torch.testing.assert_close(margins[row][box], structure.max_marginals(alone)[0])
        assert not bool(margins[row].sum() - margins[row][box].sum() > 0.0)  # nothing in the padding


def test_a_structure_around_another_has_those_of_the_other():
    chain = Chain(3)
    potentials = Potentials({"emission": draw(2, 4, 3), "transition": draw(2, 3, 3)})
    for around in (HiddenStates(chain, [0, 1, 1]), SlackRescaling(chain)):
        assert torch.equal(around.max_marginals(potentials), chain.max_marginals(potentials))


def test_decoding_that_is_not_exact_is_refused():
    cut = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 3], [1, 3], [2, 3]]).expand(3, -1, -1)
    for structure, potentials in (
        (Multilabel(4, decoder=MessagePassing(1)), Potentials({"unary": draw(3, 4), "pairwise": -3.0 + draw(3, 6)})),
        graphs(TreeReweighted(max_rounds=1, cycle_rounds=0, branches=0)),
        (GraphCut(RoofDual()), GraphPotentials(draw(3, 4), draw(3, 6), cut)),
    ):
        with pytest.raises(ValueError, match="decoder"):
            structure.max_marginals(potentials)


def test_a_structure_of_ones_own_has_them_by_its_max_oracle():
    class Sign(Structure):
        def argmax(self, potentials):
            return (potentials.single > 0).long()

        def parts(self, labeling):
            return labeling.double()

        def loss(self, labeling, target):
            return (labeling != target).double()

        def loss_potentials(self, target):
            return 1.0 - 2.0 * target, target.double()

    scores = draw(5)
    torch.testing.assert_close(Sign().max_marginals(scores), scores)
