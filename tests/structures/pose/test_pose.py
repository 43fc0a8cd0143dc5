"""Poses: the structure and its head."""

import pytest
import torch
from cases.bounded import Bounded, limits, optimum_within
from cases.head_cases import HeadTestCase
from cases.poses import all_outputs, as_maps, definition, pose_problem, pose_reference, tiny_pose, truncated_distance
from cases.problems import examples, rng
from cases.random_potentials import draw
from cases.structure_cases import StructureTestCase
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    Corrective,
    Labelings,
    LinearPose,
    Pose,
    Potentials,
    check,
)
from torchssvm.core.max_oracle import find_corner
from torchssvm.structures.pose import PoseMaps


class PoseCase(StructureTestCase):
    positive = ("deformation",)  # it multiplies squares: a score that masks would swallow all others
    options: dict = {}  # noqa: RUF012

    def make_structure(self):
        return tiny_pose(**self.options)

    def make_potentials(self, random, batch, integers, dtype):
        shapes = self.make_structure().shapes
        return Potentials({name: draw(random, (batch, *shape), integers, dtype) for name, shape in shapes.items()})

    def random_target(self, structure, potentials, random):
        outputs = all_outputs(structure)
        target = outputs[torch.randint(0, len(outputs), (potentials.batch_size,), generator=random)]
        target[:, structure.parent < 0, 2:] = torch.randint(-5, 9, (), generator=random)  # means nothing there
        return target

    def reference_score(self, potentials, labeling):
        return definition(self.make_structure(), *potentials.values(), labeling)

    def reference_loss(self, structure, labeling, target):
        return truncated_distance(structure, labeling, target)

    def count(self, structure, potentials, row):
        return (structure.height * structure.width) ** structure.num_nodes * structure.num_types ** (
            2 * structure.num_edges
        )

    def bad_targets(self, potentials, target):
        structure = self.make_structure()
        node = int(structure.lower[0])
        yield from super().bad_targets(potentials, target)
        for column, size in ((0, structure.width), (1, structure.height), (3, structure.num_types)):
            for value in (-1, size):
                wrong = target.clone()
                wrong[1, node, column] = value
                yield wrong, "target"


class TestPose(PoseCase):
    """Two nodes on 2 x 2 places, two types."""


@pytest.mark.variant
class TestPoseWithSpreads(PoseCase):
    """The root last, one row of places; the loss in units of the target's size."""

    options = {"parent": (1, -1), "grid": (1, 3), "spreads": True, "size": (0, 1), "seed": 3}  # noqa: RUF012


@examples(8)
@given(seed=st.integers(0, 2**31 - 1), negative=st.booleans(), shared=st.booleans())
def test_the_oracle_on_a_larger_grid(seed, negative, shared):
    """3 x 3 places, 3 nodes, 2 types: 11664 outputs; also for springs that push."""
    structure = tiny_pose((2, 2, -1), (3, 3), 2, seed % 7, spreads=True, size=(0, 1))
    random = rng(seed)
    tensors = {
        name: torch.randn(2, *shape, generator=random, dtype=torch.float64) for name, shape in structure.shapes.items()
    }
    if not negative:
        tensors["deformation"][..., 1::2].abs_()
    if shared:
        tensors["deformation"] = tensors["deformation"][:1].expand(2, -1, -1, -1, -1)
    potentials, outputs = Potentials(tensors), all_outputs(structure)
    target = outputs[torch.randint(0, len(outputs), (2,), generator=random)]
    every = outputs.expand(2, *outputs.shape)
    scores = structure.relative_scores(every, target, potentials)
    for row in range(2):  # some of them, by the definition
        for column in (0, 5000, 11663):
            one = [tensor[row] for tensor in tensors.values()]
            expected = definition(structure, *one, outputs[column]) - definition(structure, *one, target[row])
            assert float(scores[row, column]) == pytest.approx(expected, abs=1e-10)
    decoding = structure.argmax(potentials)
    stored = structure.relative_scores(decoding.labeling.unsqueeze(1), target, potentials).squeeze(1)
    torch.testing.assert_close(stored, scores.max(1).values)
    losses = torch.stack([structure.loss(outputs, y.expand_as(outputs)) for y in target])
    corner = find_corner(structure, potentials, target)
    torch.testing.assert_close(corner.hinge, (scores + losses).max(1).values)
    assert corner.exact


class TestLabeling:
    def test_types_are_the_nearest(self):
        displacements = torch.tensor([[[[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [-2.0, 0.0]]]])
        pose = Pose([-1, 0], displacements, (3, 5), size=1.0)
        places = torch.tensor([[[1.2, 2.0], [3.4, 1.8]], [[0.0, 0.0], [0.0, 0.0]], [[4.0, 0.0], [1.0, 0.0]]])
        labeling = pose.labeling(places)
        assert labeling.tolist() == [
            [[1, 2, -1, -1], [3, 2, 1, 1]],
            [[0, 0, -1, -1], [0, 0, 0, 0]],
            [[4, 0, -1, -1], [1, 0, 0, 0]],
        ]
        assert torch.equal(pose.labeling(places[1]), labeling[1])

    @pytest.mark.parametrize(
        "places",
        [
            torch.zeros(3, 2, 3),
            torch.tensor([[0, 0], [0, 2]]),
            torch.tensor([[-0.6, 0], [0, 0]]),
            torch.tensor([[torch.nan, 0], [0, 0]]),
        ],
    )
    def test_what_does_not_fit_is_refused(self, places):
        with pytest.raises(ValueError, match="places"):
            tiny_pose().labeling(places)


@pytest.mark.parametrize(
    ("arguments", "options", "argument"),
    [
        (([-1, 0], torch.zeros(2, 2, 3, 2), (2, 2)), {}, "displacements"),
        (([-1, 0], torch.zeros(1, 2, 0, 2), (2, 2)), {}, "displacements"),
        (([-1, 0], torch.zeros(1, 2, 1, 2), (2, 0)), {}, "grid"),
        (([-1, 0], torch.zeros(1, 2, 1, 2), (2, 2)), {"spreads": torch.ones(1, 2, 2, 2)}, "spreads"),
        (([-1, 0], torch.zeros(1, 2, 1, 2), (2, 2)), {"size": (0, 2)}, "size"),
        (([-1, 0], torch.zeros(1, 2, 1, 2), (2, 2)), {"size": 0.0}, "size"),
        (([1, 0], torch.zeros(2, 2, 1, 2), (2, 2)), {}, "parent"),
    ],
)
def test_structures_that_do_not_fit_are_refused(arguments, options, argument):
    with pytest.raises(ValueError, match=argument):
        Pose(*arguments, **{"size": 1.0, **options})


class TestLinearPose(HeadTestCase):
    def make_head(self):
        return LinearPose(tiny_pose((-1, 0, 1), (2, 3)))

    def make_input(self, random, batch):
        return (torch.randn(batch, 3 + 2 * 2 * 2, 2, 3, generator=random, dtype=torch.float64),)

    def reference(self, head, x):
        maps = x[3:].view(2, 2, 2, 2, 3)
        return {
            "unary": torch.stack([head.unary[p] * x[p] for p in range(3)]),
            "types": torch.stack([torch.stack([head.types[e, a] * maps[e, a] for a in (0, 1)]) for e in (0, 1)]),
            "deformation": head.deformation,
        }

    def bad_inputs(self, inputs):
        yield from super().bad_inputs(inputs)
        (x,) = inputs
        yield (PoseMaps(x[:, :3], x[:, 3:]),), "x.types"
        yield (PoseMaps(x[:, :2], x[:, 3:]),), "x.unary"

    def test_maps_are_the_channels(self):
        head, (x,) = self.setting(1)
        maps = PoseMaps(x[:, :3], x[:, 3:].view(3, 2, 2, 2, 2, 3))
        for name, tensor in head(x).tensors.items():
            assert torch.equal(head(maps)[name], tensor)


PROBLEM = {"n": 3, "lam": 0.3, "parent": (1, -1), "grid": (2, 3), "spreads": True, "size": 2.0}


@pytest.mark.slow
def test_both_forms_of_maps_and_float32_are_trained_alike():
    exact = pose_problem(1, **PROBLEM)
    best, _ = optimum_within(pose_reference(exact), *limits(exact, {}))
    problem = pose_problem(1, dtype=torch.float32, **PROBLEM)
    plain = problem.batch
    problem.batch = lambda rows: as_maps(plain(rows), problem.structure)
    certificate = Bounded(problem, {}, storage=Labelings(), direction=Corrective()).until(1e-4, passes=300)
    assert certificate.gap <= 1e-4
    assert certificate.dual <= best + 1e-5 <= certificate.primal + 2e-5


def test_head_and_structure_pass_the_check():
    problem = pose_problem(1, n=3, parent=(-1, 0, 0), grid=(1, 2), spreads=True, size=(0, 1))
    report = check(problem.head, problem.structure, problem.batch(range(3)))
    assert report.ok, str(report)
    skipped = [finding.name for finding in report.findings if finding.skipped is not None]
    assert skipped == ["padding changes no answer"], str(report)  # all grids have one size
