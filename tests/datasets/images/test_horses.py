"""Images as graphs of superpixels: features by their definitions, the cache on disk, files as they may lie about."""

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from torchssvm.core.batch import tree_tensors
from torchssvm.datasets import (
    GraphCache,
    GraphSettings,
    HorseSegmentation,
    PixelSegmentation,
    StaleCache,
    SuperpixelGraphs,
    pool_regions,
    segmentation_scores,
)
from torchssvm.datasets.images import graph_cache_build, graph_cache_words
from torchssvm.datasets.images.masks import MaskRule
from torchssvm.datasets.images.region_features import ETAS, edge_features, node_features
from torchssvm.datasets.images.segmentation_files import find_pairs, read_pair
from torchssvm.datasets.images.superpixels import adjacency, neighbourhoods
from torchssvm.datasets.images.visual_words import Vocabulary, descriptors, k_means, nearest, words
from torchssvm.steps import LargestGap

pytest.importorskip("skimage")
from skimage.io import imread, imsave

SMALL = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
NAMES = [f"horse{number:03}" for number in range(1, 6)]


def picture(seed: int, height: int = 40, width: int = 56) -> tuple[np.ndarray, np.ndarray]:
    """A striped ellipse before a noisy ground."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    mask = ((y - height / 2) / (height / 3)) ** 2 + ((x - width / 2 + seed) / (width / 4)) ** 2 < 1
    image = np.where(mask[:, :, None], [150, 90, 40], [60, 140, 70]) + random.normal(0, 12, (height, width, 3))
    image += 25 * np.sin(x / (2 + seed % 3))[:, :, None] * mask[:, :, None]
    return image.clip(0, 255).astype(np.uint8), mask


def save(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    imsave(path, array, check_contrast=False)
    return path


def write(root: Path, names=NAMES, images="rgb", masks="figure_ground") -> Path:
    for seed, name in enumerate(names):
        image, mask = picture(seed)
        save(root / images / f"{name}.png", image)
        save(root / masks / f"{name}.png", mask.astype(np.uint8) * 255)
    return root


def open_small(root: Path, split="train", **arguments) -> HorseSegmentation:
    return HorseSegmentation(
        split, root, **({"num_train": 3, "settings": SMALL, "cache": root / "cache", "progress": False} | arguments)
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.npy"))}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    root = write(tmp_path_factory.mktemp("horses"))
    open_small(root)
    return root


@pytest.fixture(scope="module")
def train(built) -> HorseSegmentation:
    return open_small(built)


@pytest.fixture(scope="module")
def test(built) -> HorseSegmentation:
    return open_small(built, "test")


region_maps = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(0, 999)).map(
    lambda drawn: np.unique(np.random.default_rng(drawn[3]).integers(0, drawn[2], drawn[:2]), return_inverse=True)[
        1
    ].reshape(drawn[:2])
)


@given(region_maps)
@examples(60)
def test_neighbours_by_their_definition(regions):
    height, width = regions.shape
    count = regions.max() + 1
    touching = {
        tuple(sorted((int(regions[a, b]), int(regions[c, d]))))
        for a in range(height)
        for b in range(width)
        for c, d in ((a + 1, b), (a, b + 1))
        if c < height and d < width and regions[a, b] != regions[c, d]
    }
    edges = adjacency(regions)
    assert edges.tolist() == [list(pair) for pair in sorted(touching)]
    assert edges.dtype == np.int64
    assert edges.shape[1:] == (2,)

    around = {p: {p} | {q for pair in touching if p in pair for q in pair} for p in range(count)}
    alone, first, second = neighbourhoods(edges, count)
    for p in range(count):
        assert np.flatnonzero(alone[p]).tolist() == [p]
        assert set(np.flatnonzero(first[p])) == around[p]
        assert set(np.flatnonzero(second[p])) == set().union(*(around[q] for q in around[p]))


def test_a_descriptor_by_its_definition():
    image, _ = picture(2)
    cell, stride = 4, 3
    features = descriptors(image, cell, stride)
    grey = (image.astype(np.float64) @ [0.299, 0.587, 0.114]) / 255
    down, right = np.gradient(grey)
    size, angle = np.hypot(down, right), np.arctan2(down, right) % (2 * np.pi)
    assert features.shape == (13, 19, 128)
    for node in ((6, 8), (0, 0), (12, 18)):  # in the middle, and at corners, outside of which nothing is
        centre = [stride // 2 + stride * at for at in node]
        wanted = np.zeros((4, 4, 8))
        for a in range(4):
            for b in range(4):
                for y in range(image.shape[0]):
                    for x in range(image.shape[1]):
                        far = abs(y - centre[0] - (a - 1.5) * cell), abs(x - centre[1] - (b - 1.5) * cell)
                        near = max(0, 1 - far[0] / cell) * max(0, 1 - far[1] / cell)
                        if near:
                            bins = np.abs((angle[y, x] / (np.pi / 4) - np.arange(8) + 4) % 8 - 4)
                            wanted[a, b] += near * size[y, x] * np.clip(1 - bins, 0, None)
        wanted /= np.sqrt((wanted**2).sum() + 0.05**2)
        clipped = wanted.clip(max=0.2)
        wanted = clipped * np.sqrt((wanted**2).sum() / (clipped**2).sum())
        np.testing.assert_allclose(features[node].numpy(), wanted.ravel(), atol=2e-5)


@given(st.integers(0, 10**6))
@examples(10)
def test_k_means_ends_where_every_centre_is_a_mean(seed):
    points = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed))
    centres = k_means(points, 5, seed, iterations=100)
    assert torch.equal(centres, k_means(points, 5, seed, iterations=100))
    owner = nearest(points, centres)
    assert torch.equal(owner, torch.cdist(points.double(), centres.double()).argmin(1))
    for cluster in owner.unique():
        torch.testing.assert_close(centres[cluster], points[owner == cluster].mean(0))


def test_a_pixel_has_the_word_of_its_nearest_node():
    image, _ = picture(3, 22, 31)
    random = torch.Generator().manual_seed(0)
    vocabulary = Vocabulary(torch.rand(9, 128, generator=random) / 9, torch.rand(5, 3, generator=random))
    features = words(image, vocabulary, grid=4, cell=4, stride=3)
    nodes = nearest(descriptors(image, 4, 3).flatten(0, 1), vocabulary.gradients).view(7, 10).numpy()
    for y in range(22):
        for x in range(31):
            row = np.abs(np.arange(7) * 3 + 1 - y).argmin()
            column = np.abs(np.arange(10) * 3 + 1 - x).argmin()
            assert features.gradient[y, x] == nodes[row, column]
            assert features.position[y, x] == (4 * y // 22) * 4 + 4 * x // 31
            colour = (vocabulary.colours - torch.from_numpy(image[y, x] / 255.0)).square().sum(1)
            assert colour[features.colour[y, x]] <= colour.min() + 1e-6


def test_the_sizes_are_those_of_the_paper():
    assert GraphSettings().in_features == 1969
    assert GraphSettings().edge_features == 100
    assert ETAS.tolist() == [2.0**power for power in range(-5, 6)]
    place = GraphSettings().histograms()
    assert [(key, s.stop - s.start) for key, s in place.items()] == [
        ((kind, order), width)
        for kind, width in (("gradient", 512), ("colour", 128), ("position", 16))
        for order in range(3)
    ]
    assert sorted(at for s in place.values() for at in range(s.start, s.stop)) == list(range(1, 1969))


def test_histograms_are_counts_over_neighbourhoods(train):
    graph = train.graph(0)
    image, regions = np.array(graph.images), np.array(graph.regions)
    with np.load(train.cache.folder / "words.npz") as kept:
        vocabulary = Vocabulary(torch.from_numpy(kept["gradients"]), torch.from_numpy(kept["colours"]))
    assert vocabulary.gradients.shape == (12, 128)
    assert vocabulary.colours.shape == (6, 3)
    made = node_features(image, regions.astype(np.int32), graph.edges.astype(np.int64), SMALL, vocabulary)
    np.testing.assert_array_equal(made, graph.nodes)
    assert (graph.nodes[:, 0] == 1).all()

    of_pixels = words(image, vocabulary, SMALL.grid, SMALL.cell, SMALL.stride)
    reaches = neighbourhoods(graph.edges.astype(np.int64), len(graph.nodes))
    for (kind, order), place in SMALL.histograms().items():
        for p, row in enumerate(reaches[order]):
            inside = np.isin(regions, np.flatnonzero(row))
            counts = np.bincount(getattr(of_pixels, kind)[inside], minlength=place.stop - place.start)
            np.testing.assert_allclose(graph.nodes[p, place] ** 2, counts / inside.sum(), atol=1e-6)
            assert (graph.nodes[p, place] ** 2).sum() == pytest.approx(1, abs=1e-5)


def test_edge_features_by_their_definition(train):
    graph = train.graph(1)
    assert graph.edge_features.shape == (len(graph.edges), 100)
    assert (graph.edge_features >= 0).all()
    assert (graph.edge_features[:, 0] == 1).all()
    nodes = graph.nodes.astype(np.float64) ** 2
    for e in (0, len(graph.edges) // 2, len(graph.edges) - 1):
        wanted = [1.0]
        for place in SMALL.histograms().values():
            p, q = nodes[graph.edges[e, 0], place], nodes[graph.edges[e, 1], place]
            distance = sum((a - b) ** 2 / (a + b) for a, b in zip(p, q, strict=True) if a + b > 0) / 2
            assert -1e-9 <= distance <= 1 + 1e-6
            wanted += [np.exp(-eta * distance) for eta in 2.0 ** np.arange(-5, 6)]
        np.testing.assert_allclose(graph.edge_features[e], wanted, rtol=2e-5, atol=1e-7)
    assert edge_features(graph.nodes, np.zeros((0, 2), np.int64), SMALL).shape == (0, 100)


def test_items(train, test):
    assert (len(train), len(test)) == (3, 2)
    assert train.names == NAMES[:3]
    assert test.names == NAMES[3:]
    assert (train.in_features, train.edge_features) == (1 + 3 * (12 + 6 + 16), 100)
    for dataset in (train, test):
        for i in range(len(dataset)):
            (nodes, features, edges), (labels, weights), index = dataset[i]
            assert (nodes.dtype, features.dtype, edges.dtype) == (torch.float32, torch.float32, torch.int64)
            assert index == i
            assert nodes.shape == (len(labels), dataset.in_features)
            assert features.shape == (len(edges), 100)
            regions, mask = dataset.regions(i), dataset.mask(i)
            assert torch.equal(edges, torch.from_numpy(adjacency(regions.numpy())))
            sizes = regions.flatten().bincount().double()
            share = pool_regions(mask[None, None].double(), regions[None])[0, :, 0]
            assert torch.equal(labels, (share > 0.5).long())
            # every class costs 1/2 in all, in proportion to the pixels
            for label in (0, 1):
                of_class = labels == label
                wanted = 0.5 * sizes[of_class] / sizes[of_class].sum()
                torch.testing.assert_close(weights[of_class].double(), wanted, rtol=1e-6, atol=0)
    assert train[-1].index == 2
    train[0].x.nodes.zero_()  # a copy: the cache cannot be written to
    assert train[0].x.nodes[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        train.graph(0).nodes[0, 0] = 2.0


def test_unbalanced_weights_are_shares_of_the_pixels(built):
    dataset = open_small(built, balanced=False)
    sizes = dataset.regions(0).flatten().bincount()
    torch.testing.assert_close(dataset[0].y.weights, sizes / sizes.sum())


def test_batches_are_padded(train):
    batch = train.__getitems__([2, 0])
    assert batch.index.tolist() == [2, 0]
    for row, each in enumerate([train[2], train[0]]):
        assert batch.lengths[row] == len(each.y.labels)
        together = zip((*batch.x, *batch.y), (*each.x, *each.y), (0, 0, -1, -1, 0), strict=True)
        for padded, single, filling in together:  # nodes, features of edges, edges, labels, weights
            assert torch.equal(padded[row, : len(single)], single)
            assert (padded[row, len(single) :] == filling).all()


def test_pixels(train):
    dataset = PixelSegmentation(train)
    x, y, index = dataset[1]
    assert len(dataset) == 3
    assert index == 1
    assert torch.equal(y.labels, train[1].y.labels)
    assert torch.equal((x.image * 255).round().to(torch.uint8), torch.from_numpy(picture(1)[0]).permute(2, 0, 1))
    # the nodes' colours are those of the image under their regions
    assert pool_regions(x.image[None], x.regions[None]).shape == (1, len(y.labels), 3)
    batch = next(iter(DataLoader(dataset, batch_size=3, collate_fn=dataset.collate)))
    assert batch.x.image.shape == (3, 3, 40, 56)
    assert torch.equal(batch.x.graph.nodes, train.__getitems__([0, 1, 2]).x.nodes)
    assert batch.x.regions.dtype == torch.int64


def test_the_cache_is_opened_anew_in_a_worker(train):
    sent = pickle.dumps(train)
    assert len(sent) < 4000
    again = pickle.loads(sent)
    for a, b in zip(tree_tensors(again[1]), tree_tensors(train[1]), strict=True):
        assert torch.equal(a, b)


def test_scores(test):
    truth = [test[i].y.labels for i in range(2)]
    masks, regions = [test.mask(i) for i in range(2)], [test.regions(i) for i in range(2)]
    result = [labels.clone() for labels in truth]
    result[0][:4] = 1
    projected = [labels[r] == 1 for labels, r in zip(result, regions, strict=True)]
    scores = test.scores([torch.cat([result[0], torch.tensor([-1, -1])]), result[1]])
    assert scores == segmentation_scores(projected, masks)
    assert all(torch.equal(a, b) for a, b in zip(test.foreground(result), projected, strict=True))
    for wrong in (result[:1], [result[0], result[1][:-1]]):
        with pytest.raises(ValueError, match="labelings"):
            test.scores(wrong)


def test_pooling_is_the_mean_and_differentiable():
    random = torch.Generator().manual_seed(0)
    features = torch.randn(2, 3, 4, 5, generator=random, dtype=torch.float64, requires_grad=True)
    regions = torch.randint(-1, 4, (2, 4, 5), generator=random)
    regions[regions == 2] = 1  # region 2 has no pixel
    result = pool_regions(features, regions, 5)
    assert result.shape == (2, 5, 3)
    for b in range(2):
        for region in range(5):
            inside = regions[b] == region
            wanted = features[b][:, inside].mean(1) if inside.any() else torch.zeros(3, dtype=torch.float64)
            torch.testing.assert_close(result[b, region], wanted)
    assert torch.autograd.gradcheck(lambda x: pool_regions(x, regions, 5), features)
    assert pool_regions(features, regions).shape == (2, 4, 3)
    assert pool_regions(features.half(), regions).dtype == torch.float16


def test_images_are_resized_to_their_masks(tmp_path):
    image, mask = picture(0, 80, 112)
    save(tmp_path / "rgb" / "a.png", image)
    save(tmp_path / "figure_ground" / "a.png", (mask[::2, ::2] * 255).astype(np.uint8))
    save(tmp_path / "rgb" / "b.png", np.full((50, 70, 4), [10, 20, 30, 255], np.uint8))
    save(tmp_path / "figure_ground" / "b.png", np.dstack([mask[::2, ::2].astype(np.uint8)] * 3))
    a, b = find_pairs(tmp_path, num_train=1)
    image, mask = read_pair(a)
    assert image.shape == (40, 56, 3)
    assert image.dtype == np.uint8
    image, other = read_pair(b)
    assert (image == [10, 20, 30]).all()
    np.testing.assert_array_equal(mask, other)  # ones and zeros


def numbered(tmp_path, numbers, palette=None, suffix="png"):
    """An image and a mask that holds numbers, grey or of a palette."""
    from PIL import Image

    save(tmp_path / "rgb" / "a.png", picture(0)[0][:, :, 0])  # grey
    save(tmp_path / "rgb" / "b.png", picture(0)[0])
    made = Image.fromarray(numbers)
    if palette is not None:
        made = made.convert("P")
        made.putdata(numbers.ravel().tolist())
        made.putpalette(palette)
    (tmp_path / "figure_ground").mkdir(exist_ok=True)
    made.save(tmp_path / "figure_ground" / f"a.{suffix}", **({"quality": 95} if suffix == "jpg" else {}))
    return find_pairs(tmp_path, num_train=1)[0]


VOC = [0, 0, 0, 128, 0, 0, 0, 128, 0, *[90] * 756, 224, 224, 192]


@pytest.mark.parametrize("palette", [None, VOC])
def test_numbers_of_classes_need_to_be_named(tmp_path, palette):
    mask = np.zeros((40, 56), np.uint8)
    mask[8:32, 8:48], mask[10:30, 10:40], mask[10:30, 40:46] = 255, 1, 2
    pair = numbered(tmp_path, mask, palette)
    with pytest.raises(ValueError, match="foreground="):
        read_pair(pair)
    _, result = read_pair(pair, MaskRule.of(False, 1, ignore=255))
    assert (result.filled(False) == (mask == 1)).all()
    assert (result.mask == (mask == 255)).all()
    _, result = read_pair(pair, MaskRule.of(False, [1, 2], ignore=()))
    assert (result == np.isin(mask, (1, 2))).all()


def test_a_jpeg_is_read_by_its_brightness(tmp_path):
    mask = picture(0)[1]
    pair = numbered(tmp_path, np.where(mask, 255, 0).astype(np.uint8), suffix="jpg")
    assert (read_pair(pair)[1] == mask).all()


def test_ignored_pixels_count_nowhere(tmp_path):
    root = write(tmp_path)
    plain = open_small(root, cache=tmp_path / "plain")
    for path in (root / "figure_ground").glob("*.png"):
        mask = imread(path)
        mask[:20] = 7
        save(path, mask)
    result = open_small(root, cache=tmp_path / "ignoring", foreground=255, ignore=7)
    assert (result.mask(0) == plain.mask(0))[20:].all()
    assert not result.mask(0)[:20].any()
    counted = torch.bincount(result.regions(0)[20:].flatten(), minlength=len(result[0].y.labels))
    assert result.graph(0).sizes.tolist() == counted.tolist()
    assert torch.isfinite(result[0].y.weights).all()
    assert (result[0].y.weights[counted == 0] == 0).all()
    with pytest.raises(StaleCache, match="foreground="):
        open_small(root, cache=tmp_path / "ignoring")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_kinds_of_files(tmp_path, mode):
    """Masks and images in every way that PNG and TIFF keep them."""
    from PIL import Image

    _, mask = picture(0)
    suffix = "tif" if mode == "CMYK" else "png"
    for folder in ("rgb", "figure_ground"):
        for name in "ab":
            place = tmp_path / folder / f"{name}.{suffix}"
            place.parent.mkdir(exist_ok=True)
            if mode == "I;16":
                made = Image.fromarray(mask.astype(np.uint16) * 65535)
            else:
                made = Image.fromarray(mask.astype(np.uint8) * 255).convert("RGB").convert(mode)
            assert made.mode == mode
            made.save(place)
    image, result = read_pair(find_pairs(tmp_path, num_train=1)[0])
    np.testing.assert_array_equal(result, mask)
    np.testing.assert_array_equal(image, np.repeat(mask[:, :, None] * 255, 3, axis=2))


SPOILT = {
    "cut off": lambda image, _: image.write_bytes(image.read_bytes()[:500]),
    "no image": lambda _, mask: mask.write_bytes(b"this is text"),
    "missing mask": lambda _, mask: mask.unlink(),
    "empty mask": lambda _, mask: save(mask, np.zeros((40, 56), np.uint8)),
    "other shape": lambda _, mask: save(mask, np.full((56, 40), 255, np.uint8)),
    "too small": lambda *both: [save(path, picture(0, 10, 14)[k].astype(np.uint8)) for k, path in enumerate(both)],
}


def spoil(root: Path, how: str) -> None:
    SPOILT[how](*(root / folder / "horse002.png" for folder in ("rgb", "figure_ground")))


@pytest.mark.parametrize("how", SPOILT)
def test_unusable_images(tmp_path, how):
    spoil(write(tmp_path), how)
    with pytest.raises(ValueError, match="horse002"):
        open_small(tmp_path)
    with pytest.warns(UserWarning, match="horse002"):
        train = open_small(tmp_path, on_bad="skip")
    with pytest.warns(UserWarning, match="horse002"):
        test = open_small(tmp_path, "test", on_bad="skip")
    assert (len(train), len(test)) == (2, 2)
    for each in (train, test):
        assert [each[i].index for i in range(len(each))] == list(range(len(each)))
        assert "horse002" not in each.names


@pytest.mark.parametrize(
    ("mask", "suffix", "rule"),
    [
        ("grey", "png", MaskRule()),
        ("grey", "jpg", MaskRule.of(False, 128, ())),
        ("colours", "png", MaskRule()),
        ("grey", "png", MaskRule.of(True, 1, (0, 128))),
    ],
)
def test_masks_that_do_not_say_what_is_foreground(tmp_path, mask, suffix, rule):
    pixels = np.where(picture(0)[1], 128, 0).astype(np.uint8)
    if mask == "colours":
        pixels = np.zeros((40, 56, 3), np.uint8)
        pixels[:20, :, 0], pixels[20:30, :, 1] = 255, 255
    with pytest.raises(ValueError, match="figure_ground"):
        read_pair(numbered(tmp_path, pixels, suffix=suffix), rule)


def test_empty_masks_can_be_taken(tmp_path):
    spoil(write(tmp_path), "empty mask")
    dataset = open_small(tmp_path, empty_masks=True)
    labels, weights = dataset[1].y
    assert not labels.any()
    assert weights.sum().item() == pytest.approx(1)
    assert dataset.scores([dataset[i].y.labels for i in range(3)]).mean_iou > 0.5


def test_horseseg_is_read_by_its_folders(tmp_path):
    """Names and endings as the code that the authors of [G16] published has them."""
    images, masks = tmp_path / "images" / "HorseSeg", tmp_path / "annotations" / "HorseSeg"
    made = [("n02374451/n02374451_9", "gt"), ("voc12/2008_1", "gt"), ("n02374451/n02374451_1", "no"), ("x/x_1", "bb")]
    for seed, (name, quality) in enumerate(made):
        image, mask = picture(seed)
        save(images / f"{name}.JPEG", image)
        save(masks / f"{name}.{quality}.png", mask.astype(np.uint8))
    image, mask = picture(9)
    save(images / "test" / "7.JPEG", image)
    save(masks / "test" / "7.png", mask.astype(np.uint8) * 255)

    def names(**arguments):
        return [(pair.name, pair.train) for pair in find_pairs(tmp_path, **arguments)]

    small = [("n02374451/n02374451_9", True), ("voc12/2008_1", True)]
    assert names(qualities=["gt"]) == [*small, ("test/7", False)]
    assert names() == [*small, ("x/x_1", True), ("n02374451/n02374451_1", True), ("test/7", False)]
    medium = open_small(tmp_path, size="medium")
    assert medium.names == ["n02374451/n02374451_9", "voc12/2008_1", "x/x_1"]
    assert medium.cache.names[-1] == "test/7"
    with pytest.raises(StaleCache, match="another train set"):
        open_small(tmp_path, size="large")


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({}, FileNotFoundError, "images and masks"),
        ({"images": "pictures"}, ValueError, "images="),
        ({"images": "pictures", "masks": "nothing"}, FileNotFoundError, "nothing"),
        *(
            ({"images": "pictures", "masks": "truth", **wrong}, ValueError, next(iter(wrong)))
            for wrong in ({"size": "huge"}, {"num_train": 5}, {"split": "dev"}, {"on_bad": "ignore"}, {"workers": -1})
        ),
    ],
)
def test_arguments_are_checked(tmp_path, options, error, named):
    write(tmp_path / "weizmann_horse", images="pictures", masks="truth")
    with pytest.raises(error, match=named):
        open_small(tmp_path, **options)


@pytest.fixture
def copy(built, tmp_path) -> Path:
    """Images and cache of its own."""
    write(tmp_path)
    (tmp_path / "cache").mkdir()
    for file in (built / "cache").iterdir():
        (tmp_path / "cache" / file.name).write_bytes(file.read_bytes())
    return tmp_path


def calls(monkeypatch, name, module=graph_cache_build) -> list:
    """What ``module.name`` is called with from now on."""
    results, function = [], getattr(module, name)

    def counted(first, *args, **kwargs):
        results.append(first)
        return function(first, *args, **kwargs)

    monkeypatch.setattr(module, name, counted)
    return results


def test_a_cache_is_used_again(copy, monkeypatch):
    """Copied images have other times, and the same contents."""
    made = calls(monkeypatch, "_graph")
    before = contents(copy / "cache")
    assert len(open_small(copy)) == 3
    assert not made
    assert contents(copy / "cache") == before
    assert len(SuperpixelGraphs(GraphCache(copy / "cache"), "test")) == 2  # without the images
    cache = GraphCache(copy / "cache")
    assert cache.nbytes == sum(file.stat().st_size for file in (copy / "cache").iterdir())
    assert isinstance(cache[0].nodes, np.memmap)


def test_changed_files_are_found_out(copy):
    image, _ = picture(77)
    path = save(copy / "rgb" / "horse004.png", image)
    with pytest.raises(StaleCache, match="horse004"):
        open_small(copy)
    assert len(open_small(copy, rebuild=True)) == 3
    np.testing.assert_array_equal(open_small(copy, "test").graph(0).images, image)
    path.unlink()
    save(copy / "rgb" / "horse009.png", image)
    with pytest.raises(StaleCache, match="another test set"):
        open_small(copy)
    with pytest.raises(StaleCache, match="segments=20"):
        open_small(copy, "train", settings=GraphSettings(**(vars(SMALL) | {"segments": 25})))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("nodes.npy", lambda path: os.truncate(path, 1000)),
        ("edges.npy", lambda path: path.unlink()),
        ("sizes.npy", lambda path: np.save(path, np.zeros(3, np.int32))),
        ("manifest.json", lambda path: path.write_text("{")),
    ],
)
def test_a_damaged_cache_is_refused_and_can_be_rebuilt(copy, built, name, damage):
    damage(copy / "cache" / name)
    with pytest.raises(StaleCache, match="rebuild=True"):
        open_small(copy)
    open_small(copy, rebuild=True)
    assert (copy / "cache" / "nodes.npy").read_bytes() == (built / "cache" / "nodes.npy").read_bytes()


def break_off(root: Path, name: str, **options) -> None:
    """Build until the image of this name."""
    whole = graph_cache_build._graph

    def broken(pair, **arguments):
        if pair.name == name:
            raise KeyboardInterrupt
        return whole(pair, **arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(graph_cache_build, "_graph", broken)
        open_small(root, **options)


@pytest.mark.parametrize("lost", [None, "words"])
def test_a_build_that_was_broken_off_goes_on(built, tmp_path, monkeypatch, lost):
    break_off(write(tmp_path), "horse004")
    with pytest.raises(FileNotFoundError):
        GraphCache(tmp_path / "cache")
    if lost == "words":
        (tmp_path / "cache" / "words.npz").write_bytes(b"PK")
    made, of_words = calls(monkeypatch, "_graph"), calls(monkeypatch, "_sample", graph_cache_words)
    dataset = open_small(tmp_path)
    done = 0 if lost else 3
    assert [pair.name for pair in made] == NAMES[done:]
    assert len(of_words) == (0 if done else 3)
    assert not (tmp_path / "cache" / "building.json").exists()
    before, after = contents(built / "cache"), contents(tmp_path / "cache")
    del before["places.npy"], after["places.npy"]
    assert before == after
    assert len(dataset) == 3


@pytest.mark.slow
def test_worker_processes_make_the_same(built, tmp_path):
    write(tmp_path)
    open_small(tmp_path, workers=1)
    assert (tmp_path / "cache" / "nodes.npy").read_bytes() == (built / "cache" / "nodes.npy").read_bytes()


def test_a_picture(test):
    pytest.importorskip("matplotlib")
    from torchssvm.datasets.images.horse_drawing import overlay

    labels, image, mask = test[0].y.labels, test.image(0).permute(1, 2, 0).numpy(), test.mask(0).numpy()
    foreground, drawn = (labels[test.regions(0)] == 1).numpy(), overlay(test, 0, labels)
    np.testing.assert_array_equal(drawn[~foreground & ~mask], image[~foreground & ~mask])
    for where, channel in ((foreground & mask, 1), (~foreground & mask, 2), (foreground & ~mask, 0)):
        assert (drawn[where, channel] >= image[where, channel] / 2 + 0.3).all()


def test_horse_data(built):
    pytest.importorskip("lightning")
    from torchssvm.datasets import HorseData

    arguments = {"root": built, "num_train": 3, "settings": SMALL, "cache": built / "cache"}
    data = HorseData(batch_size=2, order=LargestGap(), **arguments)
    data.prepare_data()
    data.setup("fit")
    assert (len(data.train), len(data.test)) == (3, 2)
    assert isinstance(data.train_dataloader().batch_sampler.order, LargestGap)
    (batch,) = data.val_dataloader()
    assert batch.index.tolist() == [0, 1]
    (batch,) = HorseData(pixels=True, **arguments).val_dataloader()
    assert batch.x.image.shape == (2, 3, 40, 56)


def test_real_horses(tmp_path):
    """Six of them: SLIC finds about 147 superpixels, and the labels of superpixels fit the masks."""
    from torchssvm.datasets.files import find
    from torchssvm.datasets.images.horses import FOLDER, PAGE

    try:
        place = find(FOLDER, PAGE)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    for folder in ("rgb", "figure_ground"):
        (tmp_path / folder).mkdir()
        for file in sorted((place / folder).iterdir())[:6]:
            os.symlink(file, tmp_path / folder / file.name)
    arguments = {"cache": tmp_path / "cache", "num_train": 4, "progress": False}
    few = GraphSettings(gradient_words=64, colour_words=16, samples=5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        test = HorseSegmentation("test", tmp_path, settings=few, **arguments)
    assert [len(test[i].y.labels) for i in range(2)] == pytest.approx([147, 147], abs=20)
    assert test.scores([test[i].y.labels for i in range(2)]).iou > 0.8
