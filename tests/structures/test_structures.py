from __future__ import annotations

import plain_structures as plain
import torch
from custom import LabelSets
from labelings_cases import LabelingsTestCase
from problems import rng

from torchssvm.core.potentials import Potentials


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


class TestMulticlassCost(plain.MulticlassCostCase):
    pass


class TestChain(plain.ChainCase):
    pass


class TestChainPositions(plain.ChainPositionsCase):
    pass


class TestChainUnpadded(plain.ChainUnpaddedCase):
    pass


class TestChainPositionsUnpadded(plain.ChainPositionsUnpaddedCase):
    pass


class TestChainCounts(plain.ChainCountsCase):
    pass


class TestChainClassWeights(plain.ChainClassWeightsCase):
    pass


class TestChainWeightedLabels(plain.ChainWeightedLabelsCase):
    pass
