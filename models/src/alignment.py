"""Word alignment by matching: the learned model, and two baselines on the Dice coefficient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_whole
from torchssvm.core.batch import apply_head, to_device
from torchssvm.core.decoding import as_decoding
from torchssvm.structures.matching.head import LinearEdges
from torchssvm.structures.matching.oracle import best_matching
from torchssvm.structures.matching.structure import Matching

Links = frozenset[tuple[int, int]]
"""(left, right) places of the nodes that an alignment connects."""


def alignment_matching(in_features: int) -> LinearEdges:
    """The matching of [B13] section 6: a wrong link costs 1, a missed sure link 3, divided by the left words.

    Args:
        in_features: Numbers per word pair.

    Example:
        >>> head = alignment_matching(in_features=3)
        >>> head.structure
        Matching(normalize=True, precision_cost=1.0, recall_cost=3.0)
    """
    return LinearEdges(in_features, structure=Matching(precision_cost=1.0, recall_cost=3.0))


@torch.no_grad()
def align(head: nn.Module, dataset: Any, batch_size: int = 64) -> list[Links]:
    """The links that ``head`` finds in every example of a dataset such as ``WordAlignment``.

    Args:
        head: With a ``structure`` whose labelings are ``[B, S, T]``.
        dataset: Map-style; its ``__getitems__`` makes batches.
        batch_size: Examples at a time.

    Example:
        >>> features = torch.tensor([[[[1.0], [-1.0]], [[-1.0], [1.0]]]])  # [n, S, T, F]
        >>> head = alignment_matching(in_features=1)
        >>> torch.nn.init.ones_(head.weight).shape
        torch.Size([1])
        >>> [links] = align(head, PaddedDataset(features, torch.zeros(1, 2, 2, dtype=torch.long)))
        >>> sorted(links)
        [(0, 0), (1, 1)]
    """
    at = next(head.parameters()).device
    aligned: list[Links] = []
    for rows in torch.arange(len(dataset)).split(batch_size):
        batch = to_device(dataset.__getitems__(rows), at)
        structure: Any = head.structure
        labelings = as_decoding(structure.argmax(apply_head(head, batch))).labeling
        aligned += [_links(labeling == 1) for labeling in labelings]
    return aligned


def threshold_links(coefficients: Sequence[Tensor], threshold: float) -> list[Links]:
    """All word pairs whose association is above ``threshold``; ``[S, T]`` for each sentence pair.

    Example:
        >>> [links] = threshold_links([torch.tensor([[0.9, 0.1], [0.2, 0.6]])], threshold=0.5)
        >>> sorted(links)
        [(0, 0), (1, 1)]
    """
    return [_links(values > threshold) for values in coefficients]


def matching_links(coefficients: Sequence[Tensor], threshold: float) -> list[Links]:
    """The matching with the largest sum of ``association - threshold``: links below ``threshold`` are not worth it.

    Example:
        >>> [links] = matching_links([torch.tensor([[0.9, 0.8], [0.7, 0.1]])], threshold=0.5)
        >>> sorted(links)  # each word once: 0.8 + 0.7 is more than 0.9 + 0.1
        [(0, 1), (1, 0)]
    """
    return [_links(best_matching((values - threshold).unsqueeze(0))[0]) for values in coefficients]


def best_threshold(
    rule: Callable[[Sequence[Tensor], float], list[Links]],
    coefficients: Sequence[Tensor],
    error: Callable[[list[Links]], float],
    steps: int = 100,
) -> float:
    """The threshold in ``{0, 1/steps, ..., 1}`` with the smallest error, the first of several.

    Args:
        rule: :func:`threshold_links` or :func:`matching_links`.
        coefficients: Associations between 0 and 1 of the sentences to choose on.
        error: The error of the links of these sentences.
        steps: How many thresholds are tried.

    Example:
        >>> associations = [torch.tensor([[0.9, 0.1], [0.2, 0.6]])]
        >>> true = [{(0, 0), (1, 1)}]
        >>> def wrong(links):
        ...     return sum(len(a ^ b) for a, b in zip(links, true))
        >>> best_threshold(threshold_links, associations, wrong, steps=10)
        0.2
    """
    steps = check_whole(steps, "steps")
    tried = [step / steps for step in range(steps + 1)]
    return min(tried, key=lambda threshold: error(rule(coefficients, threshold)))


def _links(chosen: Tensor) -> Links:
    return frozenset((left, right) for left, right in chosen.nonzero().tolist())
