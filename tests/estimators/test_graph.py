"""GraphSVC: forests by enumeration, chains as ChainSVC, cycles by cuts, and refusals."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from torchssvm import check, in_order
from torchssvm.estimators import ChainSVC, GraphSVC
from torchssvm.estimators.graph import _forests, _graphs
from torchssvm.structures import LinearForest

CYCLE = np.array([[0, 1], [1, 2], [2, 0]])


def forests(seed, sizes):
    chance = np.random.default_rng(seed)
    X, y = [], []
    for size in sizes:
        edges = [(v, chance.integers(v)) for v in range(1, size) if chance.random() < 0.8]
        edges = [pair if chance.random() < 0.5 else pair[::-1] for pair in edges]
        edges = chance.permutation(size)[np.array(edges, int).reshape(-1, 2)]
        X.append((chance.normal(size=(size, 2)), edges, chance.normal(size=(len(edges), 2))))
        y.append(chance.integers(3, size=size))
    return X, y


def test_forests_are_decoded_exactly():
    X, y = forests(0, [1, 2, 3, 4, 4, 4])
    torch.manual_seed(0)
    head = LinearForest(2, 2, 3)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    (batch,) = in_order(_forests(_graphs(X), y))
    report = check(head, head.structure, batch)
    report.raise_if_wrong()
    assert "finds the best output  ok" in str(report)


def test_the_direction_of_an_edge_counts():
    """An edge from p to q, whichever end is the root: q has the label after that of p."""
    edges = [np.array([[0, 1], [1, 2]]), np.array([[2, 1], [1, 0]]), np.array([[1, 0], [1, 2]])]
    y = [[0, 1, 2], [2, 1, 0], [1, 0, 2]]
    start = [[1.0 if nodes == 0 else 0.0 for nodes in labels] for labels in y[:2]]
    X = [(np.array(nodes)[:, None], links) for nodes, links in zip(start, edges[:2], strict=True)] * 5
    estimator = GraphSVC(C=1.0, random_state=0).fit(X, y[:2] * 5)
    assert estimator.score(X, y[:2] * 5) == 1.0
    turned = [(x[::-1].copy(), 2 - links) for x, links in X]
    assert estimator.score(turned, [labels[::-1] for labels in y[:2] * 5]) == 1.0
    assert estimator.edge_coef_[0, 0, 1] > estimator.edge_coef_[0, 1, 0]


def test_chains_are_those_of_chain_svc():
    """A chain's first and last token have weights of their own: here features that the graphs have too."""
    chance = np.random.default_rng(0)
    words = [chance.normal(size=(n, 2)).astype(np.float32) for n in chance.integers(1, 5, 20)]
    y = [chance.integers(3, size=len(word)) for word in words]
    ends = [np.eye(len(word), dtype=np.float32)[:, [0, -1]] for word in words]
    edges = [np.stack([np.arange(len(word) - 1), np.arange(1, len(word))], 1) for word in words]
    X = [(np.hstack([word, end]), links) for word, end, links in zip(words, ends, edges, strict=True)]
    graph = GraphSVC(lam=0.1, tol=0.005, random_state=0).fit(X, y).certificate_
    chain = ChainSVC(lam=0.1, tol=0.005, random_state=0).fit(words, y).certificate_
    assert graph.dual <= chain.primal
    assert chain.dual <= graph.primal


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cycles_of_two_labels(sign):
    pytest.importorskip("maxflow")
    chance = np.random.default_rng(0)
    X = [(chance.normal(size=(3, 2)), CYCLE, sign * chance.random((3, 1))) for _ in range(20)]
    y = [np.where(nodes[:, 0] + nodes[:, 0].mean() > 0, "on", "off") for nodes, _, _ in X]
    estimator = GraphSVC(C=10.0, tol=0.05, random_state=0).fit(X, y)
    assert estimator.certificate_.exact or sign < 0
    assert (estimator.edge_coef_ >= 0).all() or sign < 0
    assert estimator.score(X, y) > 0.8
    assert estimator.certificate_.gap <= 0.05 * estimator.certificate_.primal
    if sign > 0:
        assert (estimator.edge_coef_ > 0).all()
        with pytest.raises(ValueError, match=r"X\[1\]"):
            estimator.predict([X[0], (*X[0][:2], -X[0][2])])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_have_the_dtype_of_the_features_and_graphs_without_edges_need_none(dtype):
    X, y = forests(0, [3, 1, 4])
    X = [(nodes.astype(dtype), edges, features.astype(dtype)) for nodes, edges, features in X]
    X[1] = (X[1][0], [], [])
    estimator = GraphSVC(random_state=0).fit(X[1:] + X[:1], y[1:] + y[:1])
    assert (estimator.coef_.dtype, estimator.edge_coef_.dtype) == (dtype, dtype)
    assert estimator.edge_coef_.shape == (2, 3, 3)
    short = estimator.predict([(X[1][0], []), X[0]])
    for result, other in zip(short, estimator.predict([X[1], X[0]]), strict=True):
        assert np.array_equal(result, other)


def test_what_is_refused():
    X, y = forests(0, [3, 3])[0], [[0, 1, 2], [1, 2, 0]]
    x, cycles = X[0][0], [(x, CYCLE, np.ones((3, 2))) for x, _, _ in X]
    for wrong in (*cycles[:1], (x, [[0, 3]]), (x, [[0.0, 1.0]]), (x, [[0, 1]], []), (csr_matrix(x), [[0, 1]])):
        with pytest.raises(ValueError, match=r"X\[0\]"):
            GraphSVC().fit([wrong], y[:1])
    with pytest.raises(ValueError, match=r"X\[0\]"):
        GraphSVC(random_state=0).fit(X, y).predict(cycles)
