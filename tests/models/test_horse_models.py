"""Networks on the pixels of segmentations, what becomes of them on superpixels, and scores in pixels."""

import numpy as np
import pytest
import torch
from torch import nn

from torchssvm import Batch, Graphs, LinearGraph, StructuredHinge, WeightedLabels
from torchssvm.datasets import PrecomputedGraphs, SegmentationPixels, SegmentationScores, segmentation_scores
from torchssvm.datasets.images.segmentation_scores import scores_of_counts
from torchssvm.datasets.images.superpixel_graphs import GraphExample, SuperpixelGraphs
from torchssvm.models import ForegroundClassifier, PixelFeatures, RegionGraphs, border_contrasts

SIZE = (32, 48)


def item(seed: int, height: int, width: int, index: int = 0) -> GraphExample:
    """An image in four quarters, the last of which may be missing from the edges."""
    random = torch.Generator().manual_seed(seed)
    rows, columns = torch.arange(height).view(-1, 1), torch.arange(width)
    regions = 2 * (rows >= height // 2).long() + (columns >= width // 3).long()
    edges = torch.tensor([[0, 1], [0, 2], [1, 3], [2, 3]])[: 3 + seed % 2]
    graph = Graphs(torch.randn(4, 2, generator=random), torch.rand(len(edges), 1, generator=random), edges)
    x = SegmentationPixels(torch.rand(3, height, width, generator=random), regions, graph)
    return GraphExample(x, WeightedLabels(torch.tensor([0, 1, 1, 0]), torch.full((4,), 0.25)), index)


class Items(torch.utils.data.Dataset):
    """Images of different sizes."""

    def __init__(self, sizes=((40, 50), (30, 64), (36, 44))):
        self.examples = [item(seed, *size, seed) for seed, size in enumerate(sizes)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[i]

    @staticmethod
    def collate(examples):
        from torchssvm.datasets import PixelSegmentation

        return PixelSegmentation.collate(examples)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return RegionGraphs(PixelFeatures(width=5, size=SIZE)).eval()


def test_features_have_half_the_size_and_logits_that_of_the_image():
    torch.manual_seed(0)
    classifier = ForegroundClassifier(PixelFeatures(width=6, size=SIZE))
    for height, width in (SIZE, (50, 41)):
        image = torch.rand(2, 3, height, width)
        assert classifier.features(image).shape == (2, 6, 16, 24)
        assert classifier(image).shape == (2, height, width)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: PixelFeatures(0), "width="),
        (lambda: PixelFeatures(4, (30, 48)), "size="),
        (lambda: PixelFeatures(4, SIZE)(torch.zeros(3, *SIZE)), "image"),
    ],
)
def test_pixel_features_refuse(make, argument):
    with pytest.raises(ValueError, match=argument):
        make()


def test_borders_by_their_definition():
    random = torch.Generator().manual_seed(1)
    regions = torch.randint(0, 4, (7, 9), generator=random)
    image = torch.rand(3, 7, 9, generator=random, dtype=torch.float64)
    edges = torch.tensor([[0, 1], [3, 1], [2, 3], [-1, -1], [0, 3]])
    pixels, sums = np.zeros(5), np.zeros(5)
    neighbours = [((r, c), (r + dr, c + dc)) for r in range(7) for c in range(9) for dr, dc in ((0, 1), (1, 0))]
    for here, there in neighbours:
        if there[0] < 7 and there[1] < 9:
            pair = {int(regions[here]), int(regions[there])}
            for place, edge in enumerate(edges.tolist()):
                if set(edge) == pair and len(pair) == 2:
                    pixels[place] += 1
                    sums[place] += float((image[:, here[0], here[1]] - image[:, there[0], there[1]]).square().sum())
    lengths, contrasts = border_contrasts(image, regions, edges)
    real = edges[:, 0] >= 0
    np.testing.assert_allclose(lengths, pixels / pixels[real].mean())
    np.testing.assert_allclose(contrasts, sums / pixels.clip(min=1))
    for result in border_contrasts(image, torch.zeros_like(regions), torch.full((2, 2), -1)):
        assert result.tolist() == [0.0, 0.0]


def test_a_batch_is_made_of_its_images(network):
    """The padding of a batch changes nothing; features of edges are at least 0, and 0 where there is no edge."""
    dataset = Items()
    batch = dataset.collate(list(dataset))
    with torch.no_grad():
        nodes, edge_features, edges = network(batch.x)
        assert nodes.shape == (3, 4, network.in_features) == (3, 4, 6)
        assert edge_features.shape == (3, 4, network.edge_features)
        assert bool((edge_features >= 0).all())
        for i in range(3):
            graph = network(dataset.collate([dataset[i]]).x)
            count = graph.edges.shape[1]
            torch.testing.assert_close(nodes[i], graph.nodes[0])
            torch.testing.assert_close(edge_features[i, :count], graph.edge_features[0])
            assert not edge_features[i, count:].any()
            assert bool((edges[i, count:] == -1).all())


def test_the_features_of_nodes_are_means_over_their_pixels(network):
    dataset = Items()
    with torch.no_grad():
        nodes = network(dataset.collate([dataset[1]]).x).nodes[0]
        x = dataset[1].x
        small = nn.functional.interpolate(x.image[None], SIZE, mode="bilinear", antialias=True)
        maps = nn.functional.interpolate(network.features(small), x.image.shape[1:], mode="bilinear")[0]
    for region in range(4):
        torch.testing.assert_close(nodes[region, :-1], maps[:, x.regions == region].mean(1))
    assert bool((nodes[:, -1] == 1).all())


def test_features_are_trained_through_the_graph_cuts(network):
    pytest.importorskip("maxflow")
    dataset = Items()
    head = LinearGraph(network.in_features, network.edge_features)
    with torch.no_grad():
        head.unary.normal_(generator=torch.Generator().manual_seed(0))
        head.pairwise.fill_(0.1)
    batch = dataset.collate(list(dataset))
    loss = StructuredHinge(head.structure)(head(network(batch.x), batch.lengths), batch.y)
    loss.backward()
    assert float(loss.detach()) > 0
    assert all(bool(p.grad.any()) for p in network.features.stem.parameters())


def test_precomputed_graphs_are_those_of_the_network(network):
    dataset = Items()
    network.train()
    network.features.stem[1].eval()
    modes = [part.training for part in network.modules()]
    precomputed = PrecomputedGraphs(dataset, network)
    assert [part.training for part in network.modules()] == modes
    assert (len(precomputed), precomputed.in_features, precomputed.edge_features) == (3, 6, 7)
    network.eval()
    with torch.no_grad():
        for i in range(3):
            x, y, index = precomputed[i]
            wanted = network(dataset.collate([dataset[i]]).x)
            assert all(torch.equal(a, b[0]) for a, b in zip(x, wanted, strict=True))
            assert not x.nodes.requires_grad
            assert (index, y) == (i, dataset[i].y)
    batch = precomputed.collate([precomputed[0], precomputed[1]])
    assert isinstance(batch, Batch)
    assert batch.lengths.tolist() == [4, 4]
    assert batch.x.edges[0, 3].tolist() == [-1, -1]


def test_precomputed_graphs_of_graphs():
    """Without a network the graphs stay as they are; a function takes and gives batches."""
    graphs = [example._replace(x=example.x.graph) for example in Items().examples]

    class Some(Items):
        collate = staticmethod(SuperpixelGraphs.collate)

    some = Some()
    some.examples = graphs
    precomputed = PrecomputedGraphs(some)
    assert precomputed[2] is graphs[2]
    alone = PrecomputedGraphs(precomputed, lambda x: Graphs(x.nodes, x.edge_features[:, :0], x.edges[:, :0]))
    assert torch.equal(alone[1].x.nodes, graphs[1].x.nodes)
    assert alone[1].x.edges.shape == (0, 2)


def test_scores_of_known_masks():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]]) == 1
    result = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]]) == 1
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    assert segmentation_scores([result], [mask]) == pytest.approx(SegmentationScores(*[3 / 5] * 4, 6 / 8, 3 / 4))
    scores = segmentation_scores([result, nothing], [mask, nothing])
    assert scores == pytest.approx(SegmentationScores(3 / 5, 4 / 5, 3 / 5, 1.0, 8 / 10, (3 / 4 + 5 / 6) / 2))
    assert segmentation_scores([nothing], [nothing]) == (1.0,) * 6
    assert segmentation_scores([nothing], [~nothing]) == (0.0,) * 6
    random = np.random.default_rng(1)
    share = random.integers(1, 100, size=60)
    counts = np.stack([share, share, np.full(60, 100), np.full(60, 200)], 1)  # IoUs of share / 100
    scores = scores_of_counts(counts)
    deviation = (share / 100).std() / 60**0.5
    assert scores.mean_iou_low == pytest.approx(scores.mean_iou - 1.96 * deviation, abs=0.2 * deviation)
    assert scores.mean_iou_high == pytest.approx(scores.mean_iou + 1.96 * deviation, abs=0.2 * deviation)
    assert scores == scores_of_counts(counts)
    for result, masks in (
        ([], []),
        ([nothing], [nothing, nothing]),
        ([nothing.long()], [nothing]),
        ([nothing.T], [nothing]),
    ):
        with pytest.raises(ValueError, match="predicted"):
            segmentation_scores(result, masks)
