import inspect
import pickle

import numpy as np
import pytest
import torch
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

import torchssvm.datasets
from torchssvm import (
    Batch,
    DualState,
    GapBatchSampler,
    LinearChain,
    LinearMulticlass,
    certify,
    choose_lam,
    evaluate,
    in_order,
    solve,
)
from torchssvm.datasets import OCR, NamedChains, PaddedDataset, PrecomputedFeatures, hold_out
from torchssvm.datasets.ocr import dataset as ocr_module
from torchssvm.steps import LargestGap


@pytest.fixture(scope="module")
def small() -> OCR:
    return OCR()


@pytest.fixture(scope="module")
def large() -> OCR:
    return OCR("train", "large")


def assert_same_batch(a: Batch, b: Batch) -> None:
    for name, left, right in zip(Batch.__slots__, a, b, strict=True):
        assert left.dtype == right.dtype, name
        assert torch.equal(left, right), name


def words_of(dataset: OCR) -> list[tuple[str, bytes]]:
    return [(OCR.decode_word(e.y), e.x.numpy().tobytes()) for e in (dataset[i] for i in range(len(dataset)))]


@pytest.mark.parametrize(
    ("split", "size", "fold", "words"),
    [
        ("train", "small", 0, 626),
        ("test", "small", 0, 6251),
        ("train", "large", 0, 6251),
        ("test", "large", 0, 626),
        ("train", "small", 1, 704),
        ("train", "large", 9, 6877 - 675),
    ],
)
def test_sizes_are_the_papers(split, size, fold, words):
    dataset = OCR(split, size, fold)
    assert len(dataset) == words == len(dataset.x) == len(dataset.y) == len(dataset.lengths)
    assert dataset.x.shape[1:] == (14, 128)


def test_splits_are_disjoint_and_complete(small):
    rest = OCR("test", "small")
    assert int(small.lengths.sum() + rest.lengths.sum()) == 52152
    assert float((small.lengths.sum() + rest.lengths.sum()) / 6877) == pytest.approx(7.58, abs=0.005)
    assert max(int(small.lengths.max()), int(rest.lengths.max())) == 14
    assert words_of(OCR("train", "large")) == words_of(rest)
    assert words_of(OCR("test", "large")) == words_of(small)


def test_words_are_those_of_the_file(large):
    with np.load(ocr_module._file().open("rb"), allow_pickle=False) as raw:
        pixels, labels, offsets, folds = (raw[k] for k in ("pixels", "labels", "offsets", "folds"))
    places = np.flatnonzero(folds != 0)
    for i in [0, 1, 17, 3000, 6250]:
        start, stop = offsets[places[i]], offsets[places[i] + 1]
        x, y, index = large[i]
        assert (index, x.dtype, y.dtype) == (i, torch.float32, torch.int64)
        assert y.tolist() == labels[start:stop].tolist()
        assert x.tolist() == np.unpackbits(pixels[start:stop], axis=1).tolist()


def test_padding_is_zero_and_minus_one(small):
    outside = torch.arange(14) >= small.lengths[:, None]
    assert outside.any()
    assert torch.equal(small.y == -1, outside)
    assert not small.x[outside].any()
    assert small.x[~outside].any(-1).all()


@pytest.mark.parametrize("damage", [lambda content: content[:9] + b"x" + content[10:], lambda content: b""])
def test_a_corrupt_file_is_refused(damage, tmp_path, monkeypatch):
    file = tmp_path / "ocr_letters.npz"
    file.write_bytes(damage(ocr_module._file().read_bytes()))
    monkeypatch.setattr(ocr_module, "_file", lambda: file)
    with pytest.raises(RuntimeError, match=r"ocr_letters.npz"):
        OCR()


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: OCR(split="val"), ValueError, "split"),
        (lambda: OCR(size="medium"), ValueError, "size"),
        (lambda: OCR(fold=10), ValueError, "fold"),
        (lambda: OCR.decode_word([0, 26]), ValueError, "26"),
        (lambda: OCR.decode_word([-2]), ValueError, "-2"),
        (lambda: PaddedDataset(torch.zeros(5, 3, 2), torch.zeros(5, 3), torch.ones(4).long()), ValueError, "x"),
        (lambda: PaddedDataset(torch.zeros(5, 3, 2), torch.tensor(3)), ValueError, "x"),
        (lambda: PrecomputedFeatures(OCR(), nn.Flatten(1), batch_size=626), ValueError, r"\[626, 14\]"),
        (lambda: PrecomputedFeatures([1], nn.Identity()), TypeError, "collate"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, argument):
    with pytest.raises(error, match=argument):
        call()
    assert OCR.decode_word(torch.tensor([2, 0, 19, -1, -1])) == "cat"


@given(indices=st.lists(st.integers(-626, 625), min_size=1, max_size=20))
@examples(50)
def test_a_fetched_batch_is_its_items_padded(small, indices):
    batch = small.__getitems__(indices)
    assert batch.x.shape[1] == int(batch.lengths.max())
    assert batch.index.tolist() == [i % 626 for i in indices]
    assert_same_batch(batch, OCR.collate([small[i] for i in indices]))
    assert_same_batch(batch, small.__getitems__(torch.tensor(indices)))


def test_a_batch_does_not_alias_the_data(small):
    before = small.x[3].clone()
    small.__getitems__([3]).x.fill_(9)
    assert torch.equal(small.x[3], before)


def test_indexing_errors(small):
    assert small[-1].index == 625
    assert len(list(small)) == 626  # the iteration protocol ends on IndexError
    for wrong in (626, -627):
        for get in (small.__getitem__, lambda wrong: small.__getitems__([0, wrong, 1])):
            with pytest.raises(IndexError, match=str(wrong)):
                get(wrong)
    for fetch in (small.__getitems__, small.collate):
        with pytest.raises(ValueError):
            fetch([])


def test_datasets_of_one_kind_are_joined_and_numbered_anew():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 4, 2, generator=random), torch.randint(0, 3, (9, 4), generator=random)
    lengths = torch.tensor([4, 1, 2, 3, 4, 4, 1, 2, 4])
    beyond = torch.arange(4) >= lengths.unsqueeze(1)
    x[beyond], y[beyond] = 0.0, -1
    parts = [PaddedDataset(x[rows], y[rows], lengths[rows]) for rows in (slice(4), slice(4, None))]
    whole, joined = PaddedDataset(x, y, lengths), ConcatDataset(parts)
    for one, other in zip(in_order(joined, batch_size=3), in_order(whole, batch_size=3), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert sorted(len(part) for part in hold_out(joined, 0.3)) == [3, 6]
    certificate = [solve(LinearChain(2, 3), data, 0.3, progress=False) for data in (joined, whole)]
    assert certificate[0].primal == pytest.approx(certificate[1].primal, rel=0.01)
    others = PaddedDataset(x, y)  # without lengths, which has another collate
    head, nested = LinearChain(2, 3), ConcatDataset([ConcatDataset(parts[:1]), parts[1]])
    assert str(evaluate(head, head.structure, nested)) == str(evaluate(head, head.structure, whole))
    for pair in ((whole, PaddedDataset(x[..., :1], y, lengths)), (others, PaddedDataset(x[..., :1], y))):
        with pytest.raises(ValueError, match="features"):
            next(iter(in_order(ConcatDataset(pair), batch_size=18)))
    loader = DataLoader(joined, batch_size=9, collate_fn=whole.collate)
    with pytest.raises(ValueError, match="twice"):
        certify(head, DualState.for_head(head, 9, 0.3), loader)
    names = [NamedChains([[[name]]], [["A"]]) for name in ("a", "b")]
    for wrong in ([whole, others], names, [[1], [2]]):
        with pytest.raises(ValueError, match="parts"):
            in_order(ConcatDataset(wrong))


class Users(Dataset):
    """A dataset that knows nothing of this package but the batch."""

    def __init__(self, x, y):
        self.pairs = list(zip(x, y, strict=True))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return *self.pairs[i], i

    def collate(self, items):
        x, y, index = zip(*items, strict=True)
        return Batch(torch.stack(x), torch.stack(y), torch.tensor(index))


@pytest.mark.parametrize("make", [PaddedDataset, Users])
def test_parts_of_a_dataset_are_numbered_anew(make):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=random)
    data = make(x, (x[:, 0] > 0).long())
    rows = [7, 2, 9, 4, 11, 0]
    wanted = make(x[rows], (x[rows, 0] > 0).long())
    parts = {
        "places": Subset(data, np.array(rows)),
        "nested": Subset(Subset(data, [0, 2, 4, 7, 9, 11]), [3, 1, 4, 2, 5, 0]),
        "of joined": Subset(ConcatDataset([Subset(data, range(6)), Subset(data, range(6, 12))]), rows),
        "joined": ConcatDataset([Subset(data, rows[:2]), Subset(data, rows[2:])]),
    }
    head = LinearMulticlass(3, 2)
    best = solve(head, wanted, 0.1, progress=False)
    for part in parts.values():
        mine, other = (next(iter(in_order(source))) for source in (part, wanted))
        assert torch.equal(mine.x, other.x)
        assert torch.equal(mine.index, other.index)
        assert solve(LinearMulticlass(3, 2), part, 0.1, progress=False).primal == best.primal
        assert evaluate(head, head.structure, part).loss == evaluate(head, head.structure, wanted).loss
        assert [len(some) for some in hold_out(part, 0.5)] == [3, 3]
        frozen = PrecomputedFeatures(part, nn.Identity())
        assert torch.equal(frozen.x, x[rows])
        loaded = torchssvm.datasets.GapDataModule.from_datasets(part, part, batch_size=2, by_gap=False)
        assert sorted(i for batch in loaded.train_dataloader() for i in batch.index.tolist()) == list(range(6))
    train, rest = random_split(data, [8, 4], random)
    assert choose_lam(LinearMulticlass(3, 2), train, rest, lams=(1.0, 0.1), progress=False).best.lam in (1.0, 0.1)
    collated = next(iter(in_order(Subset(data, rows), collate_fn=lambda items: data.collate(items))))
    assert collated.index.tolist() == list(range(6))


def test_a_part_of_a_dataset_knows_what_describes_it():
    y = torch.zeros(3, 4, dtype=torch.int64)
    data = PaddedDataset(torch.zeros(3, 4, 2), y, torch.tensor([4, 1, 3]))
    data.in_features = 2
    for wrong in (Subset(data, [2, 1]), ConcatDataset([data, data])):
        with pytest.raises(ValueError, match="in_features=2"):
            solve(LinearChain(5, 3), wrong, 0.1)
    head = LinearChain(2, 3)
    certificate = solve(head, Subset(data, [2, 1]), 0.1, progress=False)
    assert certificate.gap <= 0.01 * certificate.primal
    with pytest.raises(ValueError, match="collate"):
        solve(head, Subset([1, 2], [0]), 0.1)


class Network(nn.Module):
    """A letter-wise CNN whose output would betray training mode and, at the padding, its biases."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.frozen.eval()

    def forward(self, x):
        h = self.norm(self.convolution(x.reshape(-1, 1, 16, 8))).amax((2, 3))
        return self.dropout(self.frozen(h)).view(*x.shape[:2], 4)


class Backwards(Dataset):
    """The words in reverse order, one at a time, numbered as before."""

    collate = staticmethod(OCR.collate)

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.dataset[len(self) - 1 - i]


@pytest.mark.parametrize("batch_size", [1, 50, 1000])
def test_precomputed_features(small, batch_size):
    torch.manual_seed(0)
    network = Network()
    statistics = network.norm.running_mean.clone()
    modes = [m.training for m in network.modules()]
    features = PrecomputedFeatures(small, network, batch_size=batch_size)

    assert [m.training for m in network.modules()] == modes
    assert torch.equal(network.norm.running_mean, statistics)
    assert features.x.shape == (626, 14, 4)
    assert not features.x.requires_grad
    assert torch.equal(features.y, small.y)
    assert torch.equal(features.lengths, small.lengths)
    assert torch.equal(features.index, torch.arange(626))
    network.eval()
    with torch.no_grad():
        for i in (0, 100, 625):
            x, y, index = features[i]
            torch.testing.assert_close(x, network(small[i].x[None])[0])
            assert torch.equal(y, small[i].y)
            assert index == i
    assert not features.x[features.y == -1].any()
    assert_same_batch(features.__getitems__([3, 1]), features.collate([features[3], features[1]]))


def test_precomputed_features_of_any_dataset_keep_its_indices(small):
    features = PrecomputedFeatures(Backwards(small), nn.Identity(), batch_size=64)
    assert features[0].index == 625
    assert torch.equal(features.x.flip(0), small.x)
    assert torch.equal(features.lengths.flip(0), small.lengths)
    assert torch.equal(features.index.flip(0), small.index)
    assert features.__getitems__([0, 625]).index.tolist() == [625, 0]


class Packed(nn.Module):
    """A recurrent network that reads no padding."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(128, 3, bidirectional=True, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("wrap", [lambda network: network, torch.compile], ids=["plain", "compiled"])
def test_precomputed_features_give_lengths_to_networks_that_take_them(wrap, small, monkeypatch):
    torch.manual_seed(0)
    network = Packed()
    few = PaddedDataset(small.x[:20], small.y[:20], small.lengths[:20])
    with torch.compiler.set_stance("force_eager"):
        features = PrecomputedFeatures(few, wrap(network), batch_size=6)
    with torch.no_grad():
        for i in range(20):
            alone = few[i].x[None]
            torch.testing.assert_close(features[i].x, network(alone, torch.tensor([alone.shape[1]]))[0])
    assert not features.x[features.y == -1].any()


@pytest.mark.cuda
def test_precomputed_features_on_a_device(small, cuda):
    network = Network().eval()
    expected = PrecomputedFeatures(small, network)
    features = PrecomputedFeatures(small, network.cuda(), device="cuda")
    batch = features.__getitems__([0, 5])
    assert [t.device.type for t in batch] == ["cuda", "cpu", "cpu", "cpu"]  # a step checks the rest without waiting
    torch.testing.assert_close(batch.x.cpu(), expected.__getitems__([0, 5]).x, atol=1e-2, rtol=1e-2)


def test_ocr_data():
    pytest.importorskip("lightning")
    from torchssvm.datasets import OCRData

    data = OCRData("small", batch_size=32, fold=3, order=LargestGap(), seed=1)
    training = data.train_dataloader()
    assert isinstance(training.batch_sampler, GapBatchSampler)
    assert isinstance(training.batch_sampler.order, LargestGap)
    training.batch_sampler.bind(DualState.for_head(LinearChain(128, 26), num_examples=698, lam=1e-3))
    seen = [batch.index for batch in training]
    assert max(map(len, seen)) == 32
    assert sorted(torch.cat(seen).tolist()) == list(range(698)) != torch.cat(seen).tolist()  # the first pass visits all
    assert torch.cat([batch.index for batch in data.val_dataloader()]).tolist() == list(range(6877 - 698))


COLLATING = [one for one in map(vars(torchssvm.datasets).get, torchssvm.datasets.__all__) if hasattr(one, "collate")]


@pytest.mark.parametrize("dataset", COLLATING)
def test_collate_functions(dataset):
    """They take whatever a loader fetched, and go to its workers."""
    batch = Batch(torch.zeros(1, 2), torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    assert dataset.collate(batch) is batch
    with pytest.raises(ValueError, match="examples"):
        dataset.collate([])
    assert pickle.loads(pickle.dumps(dataset.collate)) is dataset.collate
    assert "Batch | Sequence" in str(inspect.signature(dataset.collate).parameters["examples"])


@pytest.mark.parametrize("shape", [(4,), (4, 3)], ids=["classes", "sequences"])
def test_batches_of_examples_of_one_size_have_no_lengths(shape):
    data = PaddedDataset(torch.zeros(*shape, 2), torch.ones(shape, dtype=torch.int64))
    collate = pickle.loads(pickle.dumps(data)).collate
    made, fetched = collate([data[2], data[0]]), data.__getitems__([2, 0])
    assert made.lengths is fetched.lengths is None
    assert all(map(torch.equal, (made.x, made.y, made.index), (fetched.x, fetched.y, fetched.index)))


def test_lengths_that_drop_labels_are_warned_of():
    x, y, lengths = torch.zeros(2, 3, 1), torch.tensor([[0, 1, 2], [1, 0, 0]]), torch.tensor([2, 1])
    with pytest.warns(UserWarning, match="position 1 of example 1"):
        PaddedDataset(x, y, lengths)
    for padding in (-1, 0):
        inside = torch.arange(3) < lengths.unsqueeze(1)
        PaddedDataset(x, y.masked_fill(~inside, padding), lengths)
