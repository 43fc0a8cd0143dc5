"""Segments: the structure, its head, and training to the optimum over all segmentations."""

import itertools

import pytest
import torch
from cases.head_cases import HeadTestCase
from cases.problems import Problem, examples, rng
from cases.random_potentials import draw
from cases.structure_cases import StructureTestCase
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    Batch,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    LinearSegments,
    Pairwise,
    Potentials,
    Segments,
    SlackRescaling,
    certify,
    evaluate,
)
from torchssvm.structures.segments.oracle import semi_markov, semi_markov_marginals, semi_markov_torch
from torchssvm.structures.segments.structure import every_segmentation, span_f1


def draw_codes(structure, length, random):
    """A random segmentation."""
    every = list(every_segmentation(length, structure.num_labels, structure.min_duration, structure.max_duration))
    return torch.tensor(every[int(torch.randint(len(every), (), generator=random))])


class TestSegments(StructureTestCase):
    labels, most, padded = 2, 2, True
    no_values = (4, -1, 0)
    options: dict = {}  # noqa: RUF012

    def make_structure(self):
        return Segments(self.labels, self.most, **self.options)

    def make_potentials(self, random, batch, integers, dtype):
        lengths = torch.randint(1, 5, (batch,), generator=random) if self.padded else torch.full((batch,), 3)
        shapes = {
            "emission": (batch, int(lengths.max()), self.make_structure().num_scores),
            "segment": (batch, self.labels + self.most, self.labels),
        }
        tensors = {name: draw(random, shape, integers, dtype) for name, shape in shapes.items()}
        return Potentials(tensors, lengths, ragged={"emission": 0}) if self.padded else Potentials(tensors)

    def random_target(self, structure, potentials, random):
        batch, longest = potentials["emission"].shape[:2]
        codes = torch.randint(-2, 9, (batch, longest), generator=random)
        for row in range(batch):
            length = longest if potentials.lengths is None else int(potentials.lengths[row])
            codes[row, :length] = draw_codes(structure, length, random)
        return codes

    def reference_score(self, potentials, labeling):
        (spans,) = self.make_structure().spans(labeling.unsqueeze(0))
        emission, segment = potentials["emission"], potentials["segment"]
        total, before = 0.0, None
        for start, end, label in spans:
            total += float(emission[start:end, label].sum()) + float(segment[self.labels + end - start - 1, label])
            total += 0.0 if before is None else float(segment[before, label])
            total += float(emission[start, self.labels + label]) if emission.shape[1] > self.labels else 0.0
            before = label
        return total

    def reference_loss(self, structure, labeling, target):
        one, true = (set(structure.spans(codes.unsqueeze(0))[0]) for codes in (labeling, target))
        if structure.span_loss:
            return len(one ^ true)
        frames = [{t: k for s, e, k in spans for t in range(s, e)} for spans in (one, true)]
        weight = torch.ones(self.labels) if structure.class_weight is None else structure.class_weight
        return sum(float(weight[frames[1][t]]) * (frames[0][t] != frames[1][t]) for t in frames[0])

    def count(self, structure, potentials, row):
        length = potentials["emission"].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        counts = [1]
        for t in range(1, length + 1):
            fit = [d for least in structure.min_duration for d in range(least, self.most + 1) if d <= t]
            counts.append(sum(counts[t - d] for d in fit))
        return counts[-1]

    def bad_targets(self, potentials, target):
        yield from super().bad_targets(potentials, target)
        longest = target.shape[1]
        if longest > self.most and not self.padded:
            wrong = target.clone()
            wrong[1] = torch.tensor([self.labels] + [0] * (longest - 1))
            yield wrong, "target"


@pytest.mark.variant
class TestSegmentsWithBoundaries(TestSegments):
    options = {"boundary": True, "min_duration": [1, 2]}  # noqa: RUF012
    most = 3


@pytest.mark.variant
class TestSegmentsWithClassWeights(TestSegments):
    options = {"class_weight": torch.tensor([0.5, 2.0])}  # noqa: RUF012


@pytest.mark.variant
class TestSegmentsUnpadded(TestSegments):
    padded = False


class TestSegmentsOfSpans(TestSegments):
    options = {"span_loss": True, "boundary": True}  # noqa: RUF012

    def test_the_loss_is_the_definition_and_its_potentials(self):
        structure, potentials, target = self.setting(1)
        with pytest.raises(NotImplementedError, match="loss_potentials"):
            structure.loss_potentials(target)
        for labeling in structure.enumerate(potentials):
            loss = structure.loss(labeling, target)
            for row in range(3):
                one = self.one(labeling, potentials, row), self.one(target, potentials, row)
                assert float(loss[row]) == self.reference_loss(structure, *one)


class TestLinearSegments(HeadTestCase):
    boundary = False

    def make_head(self):
        return LinearSegments(2, 3, 4, structure=Segments(3, 4, boundary=self.boundary))

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 2, generator=random, dtype=torch.float64)
        return x, torch.randint(1, 5, (batch,), generator=random)

    def reference(self, head, x):
        return {"emission": x @ head.emission.T + head.bias, "segment": torch.cat([head.transition, head.duration])}


@pytest.mark.variant
class TestLinearSegmentsWithBoundaries(TestLinearSegments):
    boundary = True


@examples(60)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 4),
    longest=st.integers(1, 9),
    labels=st.integers(1, 4),
    most=st.integers(1, 11),
    boundary=st.booleans(),
    integers=st.booleans(),
    forbidden=st.sampled_from([0.0, 0.3]),
    mask=st.sampled_from([-torch.inf, -1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    spans=st.booleans(),
)
def test_the_kernel_has_the_bits_of_torch(
    seed, batch, longest, labels, most, boundary, integers, forbidden, mask, dtype, spans
):
    random = rng(seed)

    def draw(*shape):
        result = torch.randn(shape, generator=random).to(dtype)
        result = result.round() if integers else result
        return result.masked_fill(torch.rand(shape, generator=random) < forbidden, mask)

    emission = draw(batch, longest, labels * (2 if boundary else 1))
    segment = draw(batch, labels + most, labels)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random)
    target = None
    if spans:
        frames = torch.randint(labels, (batch, longest), generator=random)
        frames = frames.masked_fill(torch.arange(longest) >= lengths.unsqueeze(1), -1)
        target = Segments(labels, longest).from_frames(frames)
        segment = torch.cat([segment, draw(batch, longest, labels)], 1)
    least = torch.randint(1, most + 1, (labels,), generator=random)
    least[0] = 1
    result, expected = (way(emission, segment, least, lengths, target) for way in (semi_markov, semi_markov_torch))
    assert torch.equal(result[1], expected[1])
    possible = result[1] > -torch.inf
    assert torch.equal(result[0][possible], expected[0][possible])


@pytest.mark.slow
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_marginals_on_a_device_take_shared_and_turned_tables_and_lengths_of_the_host(batch, dtype, cuda):
    random = rng(batch)
    emission, segment = (torch.randn(batch, *size, generator=random, dtype=dtype) for size in ((9, 6), (7, 3)))
    least, lengths = torch.tensor([1, 2, 1]), torch.tensor([5, 9, 7])[:batch]
    tables = {
        "one each": lambda t: t,
        "turned": lambda t: t.mT.contiguous().mT,
        "shared": lambda t: t[:1].expand_as(t),
    }
    for name, make in tables.items():
        for where in ("cpu", cuda, None):
            placed = None if where is None else lengths.to(where)
            given = make(segment), least, None if placed is None else lengths
            moved = make(segment.to(cuda)), least.to(where or "cpu"), placed
            scores = emission.to(cuda).requires_grad_(name == "one each")
            pairs = zip(semi_markov_marginals(scores, *moved), semi_markov_marginals(emission, *given), strict=True)
            for result, expected in pairs:
                assert not result.requires_grad
                torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_a_long_sequence_is_decoded_by_its_definition():
    """The labels of pieces of 50 frames are plain, though sums of all frames before them would round in float32."""
    labels = torch.arange(5_000).div(50, rounding_mode="floor").remainder(3).unsqueeze(0)
    emission = torch.nn.functional.one_hot(labels, 3) + 10_000.0 + 0.1 * torch.randn(1, 5_000, 3, generator=rng(1))
    structure, segment = Segments(3, 64), torch.zeros(1, 67, 3)
    segment[:, 3:] = -2.0  # of every segment
    result = structure.decode({"emission": emission, "segment": segment})
    assert torch.equal(result, structure.from_frames(labels))


def test_spans_and_frames_are_read_back():
    structure = Segments(3, 4)
    spans = [[(0, 2, 1), (2, 3, 1), (3, 4, 0)], [(0, 1, 2)]]
    codes = structure.from_spans(spans)
    assert codes.tolist() == [[4, 1, 4, 3], [5, -1, -1, -1]]
    assert structure.spans(codes) == spans
    assert structure.frames(codes).tolist() == [[1, 1, 1, 0], [2, -1, -1, -1]]
    assert structure.from_frames(structure.frames(codes)).tolist() == [[4, 1, 1, 3], [5, -1, -1, -1]]


@pytest.mark.parametrize(
    "make, argument",
    [
        (lambda: Segments(0, 2), "num_labels"),
        (lambda: Segments(2, 0), "max_duration"),
        (lambda: Segments(2, 2, min_duration=3), "min_duration"),
        (lambda: Segments(2, 2, min_duration=[0, 1]), "min_duration"),
        (lambda: Segments(2, 2, class_weight=torch.tensor([1.0, -1.0])), "class_weight"),
        (lambda: Segments(2, 2, class_weight=torch.ones(2), span_loss=True), "class_weight"),
        *(
            (lambda spans=spans: Segments(2, 2).from_spans(spans), "spans")
            for spans in (
                [[(0, 1, 0), (2, 3, 0)]],
                [[(0, 1, 2)]],
                [[(0, 1, "a")]],
                [[]],
            )
        ),
        *(
            (lambda labels=labels: Segments(2, 2).from_frames(labels), "labels")
            for labels in ([[0, 1]], *map(torch.tensor, ([[2]], [[1, 0], [-1, 0]], [[0, -100]])))
        ),
        *(
            (lambda codes=codes: Segments(2, 2).spans(torch.tensor(codes)), "labeling")
            for codes in ([2, 0], [[0, 0, 1]], [[2, 4]])
        ),
        (lambda: span_f1([[]], [[]], times=[-1]), "times"),
        (lambda: LinearSegments(2, 3, 4, structure=Segments(3, 5)), "structure"),
    ],
)
def test_what_makes_no_segments_is_refused(make, argument):
    with pytest.raises(ValueError, match=argument):
        make()


def test_lengths_that_no_durations_add_up_to_are_refused():
    structure = Segments(2, 4, min_duration=3)
    potentials = {"emission": torch.zeros(2, 6, 2), "segment": torch.zeros(2, 6, 2)}
    with pytest.raises(ValueError, match="lengths has 5"):
        structure.argmax(Potentials(potentials, lengths=torch.tensor([6, 5])))


def problem(**options):
    random, lengths = rng(3), torch.tensor([5, 2, 3, 1, 4])
    structure = Segments(2, 3, **options)
    y = torch.full((5, 5), -1)
    for row, length in enumerate(lengths.tolist()):
        y[row, :length] = draw_codes(structure, length, random)
    x = torch.randn(5, 5, 2, generator=random, dtype=torch.float64)
    return Problem(LinearSegments(2, 2, 3, structure=structure).double(), x, y, lengths, 0.5)


WEIGHTS = {"class_weight": torch.tensor([0.5, 2.0])}


@pytest.mark.parametrize("options", [{}, {"span_loss": True, "boundary": True}, WEIGHTS], ids=str)
def test_training_certifies_a_small_gap(options):
    made = problem(**options)
    assert made.train(storage=Labelings(8), direction=Pairwise()).until(0.01, passes=120).gap <= 0.01


def test_the_compiled_loop_has_the_costs_of_frames():
    made = problem(**WEIGHTS)
    dual = DualState.for_head(made.head, 5, 0.1, storage=Labelings())
    trainer = CompiledBCFW(made.head, dual, [made.batch(range(5))], direction=Corrective(), oracle=CacheOracle())
    certificate = trainer.solve(1e-4, progress=False)
    again = certify(made.head, dual, [made.batch(range(5))])
    assert (again.primal, again.dual) == pytest.approx((certificate.primal, certificate.dual), rel=1e-9)


def test_evaluate_counts_frames_of_another_label_and_no_borders():
    head = LinearSegments(2, 2, 4).double()
    structure = head.structure
    with torch.no_grad():
        head.emission.copy_(torch.eye(2, dtype=torch.float64))
    labels = torch.tensor([[0, 0, 1, 1]])
    x = torch.nn.functional.one_hot(labels, 2).double()
    batch = Batch(x, structure.from_spans([[(0, 2, 0), (2, 4, 1)]]), torch.tensor([0]))
    assert len(structure.spans(structure.decode(head(x)))[0]) == 4
    for around in (structure, SlackRescaling(structure)):
        report = evaluate(head, around, [batch])
        assert (report.token_error, report.loss) == (0.0, 0.0)


def test_span_f1_takes_no_codes():
    for spans in (torch.tensor([[2, 0, 3]]), [(0, 2, 1)], [[(0, 2)]]):
        with pytest.raises((TypeError, ValueError)):
            span_f1(spans, spans)
    for times in (None, [1, 1, 1]):
        with pytest.raises(ValueError):
            span_f1([[]], [[], []], times=times)
    assert span_f1((iter(one) for one in [[(0, 2, 1)]]), [[(0, 2, 1)]], times=torch.tensor([2])) == 1.0


@given(st.integers(0, 2**32), st.sampled_from([0.5, 0.6, 0.75, 0.9]))
@examples(50)
def test_span_f1_of_an_overlap_counts_pairs(seed, overlap):
    random = torch.Generator().manual_seed(seed)
    structure = Segments(2, 12)
    predicted, true = (
        structure.spans(structure.from_frames(torch.randint(0, 2, (3, 12), generator=random))) for _ in range(2)
    )
    pairs = set()
    for row, (one, others) in enumerate(zip(predicted, true, strict=True)):
        for a, b in itertools.product(one, others):
            both, either = set(range(*a[:2])) & set(range(*b[:2])), set(range(*a[:2])) | set(range(*b[:2]))
            if a[2] == b[2] and len(both) >= overlap * len(either):
                pairs.add((row, b))  # runs of one label do not overlap, so at most one covers half
    total = sum(map(len, predicted + true))
    assert span_f1(predicted, true, overlap) == pytest.approx(2 * len(pairs) / total)
    assert span_f1(predicted, predicted, overlap) == span_f1(predicted, predicted) == 1.0


def test_span_f1_counts_a_span_once_and_refuses_less_than_half():
    halves, whole = [[(0, 2, 1), (2, 4, 1)]], [[(0, 4, 1)]]
    assert span_f1(halves, whole, 0.5) == span_f1(whole, halves, 0.5) == pytest.approx(2 / 3)
    for overlap in (0.4, 1.5, "1", float("nan")):
        with pytest.raises((TypeError, ValueError), match="overlap="):
            span_f1(whole, whole, overlap)
