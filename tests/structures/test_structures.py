from types import ModuleType

import pytest
import torch
from cases import plain_structures as plain
from cases.labelings_cases import LabelingsTestCase
from cases.problems import rng
from cases.top_label_sets import LabelSets

from torchssvm import (
    Arborescence,
    Chain,
    HiddenStates,
    Multiclass,
    PairwiseGraph,
    Segments,
    Structure,
    Tree,
    grid_edges,
    structures,
)
from torchssvm.core.potentials import Potentials
from torchssvm.structures.arborescence import Projective
from torchssvm.structures.pairwise_graph import PairwisePotentials


class TestLabelSets(LabelingsTestCase):
    """A structure from scratch, with the defaults of the base class: labelings without lengths."""

    def setting(self, seed, batch=3, integers=False):
        random = rng(seed)
        structure = LabelSets(5, 2)
        potentials = Potentials(torch.randn(batch, 5, generator=random, dtype=torch.float64))
        target = structure.argmax(Potentials(torch.randn(batch, 5, generator=random, dtype=torch.float64)))
        return structure, potentials, structure.check_target(target, potentials)


class TestMulticlass(plain.MulticlassCase):
    pass


class TestChain(plain.ChainCase):
    pass


for _case in (
    *(plain.MulticlassCostCase, plain.ChainPositionsCase, plain.ChainUnpaddedCase, plain.ChainPositionsUnpaddedCase),
    *(plain.ChainCountsCase, plain.ChainClassWeightsCase, plain.ChainTransitionsCase),
    *(plain.ChainPositionsTransitionsCase, plain.ChainWeightedLabelsCase),
):
    _name = "Test" + _case.__name__.removesuffix("Case")
    globals()[_name] = pytest.mark.variant(type(_name, (_case,), {"__module__": __name__}))


def test_no_foreign_names_are_exported():
    """``torchssvm.structures`` has what its kinds list, and their modules, and nothing that these import."""
    public = {name: value for name, value in vars(structures).items() if not name.startswith("_")}
    assert {name for name, value in public.items() if not isinstance(value, ModuleType)} == set(structures.__all__)
    assert len(set(structures.__all__)) == len(structures.__all__)
    for name in set(structures.__all__) - {"POSSIBLE"}:  # a number
        module = public[name].__module__
        assert module.startswith(("torchssvm.structures.", "torchssvm.core.structure", "torchssvm.core.decoding")), name
    modules = {value.__name__ for value in public.values() if isinstance(value, ModuleType)}
    assert all(name.startswith("torchssvm.structures.") for name in modules)


def _forbidden(**shapes: tuple[int, ...]) -> Potentials:
    return Potentials({name: torch.full((1, *shape), -torch.inf) for name, shape in shapes.items()})


EDGES = torch.zeros(1, 3, 3)
FORBIDDEN = {
    "classes": (Multiclass(3), Potentials(torch.full((1, 3), -torch.inf))),
    "chain": (Chain(3), _forbidden(emission=(2, 3), transition=(3, 3))),
    "hidden states": (HiddenStates(Chain(3)), _forbidden(emission=(2, 3), transition=(3, 3))),
    "tree": (Tree(3, [-1, 0]), _forbidden(node=(2, 3), edge=(3, 3))),
    "segments": (Segments(2, 2), _forbidden(emission=(3, 2), segment=(4, 2))),
    "graphs": (
        PairwiseGraph(2),
        PairwisePotentials(torch.zeros(1, 3, 2), torch.full((1, 2, 2, 2), -torch.inf), grid_edges(1, 3)[None]),
    ),
    "boundaries": (Segments(2, 2, boundary=True), _forbidden(emission=(3, 4), segment=(4, 2))),
    "forest": (Tree(3, [-1, -1]), Potentials({"node": torch.tensor([[[0.0] * 3, [-torch.inf] * 3]]), "edge": EDGES})),
    "arcs": (Arborescence(), Potentials(torch.full((1, 2, 3), -torch.inf))),
    "projective arcs": (Arborescence(Projective()), Potentials(torch.full((1, 2, 3), -torch.inf))),
    "labelled arcs": (Arborescence(num_labels=2), Potentials(torch.full((1, 2, 3, 2), -torch.inf))),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_where_every_output_is_forbidden_the_value_says_so(kind):
    structure, potentials = FORBIDDEN[kind]
    assert structure.argmax(potentials).value.tolist() == [-torch.inf]
    assert bool(structure.max_marginals(potentials).isnan().all())
    if type(structure).marginals is not Structure.marginals:
        means = structure.marginals(potentials)
        assert means.log_partition.tolist() == [-torch.inf]
        assert all(bool(mean.isnan().all()) for mean in means.parts.values())
