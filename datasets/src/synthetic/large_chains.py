"""Synthetic chains with thousands of states, whose best weights are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import as_number, check_choice, check_object, check_whole

from ..multilabel.sparse_rows import SparseRows
from ..text.sparse_chains import SparseChains

_STREAMS = {"truth": 0, "train": 1, "test": 2}
_ENTRIES = 4_000_000  # scores in memory at a time while decoding


@dataclass(frozen=True)
class ChainTruth:
    """The sparse weights that chains are drawn from.

    Attributes:
        emission: ``[F, K]``.
        transition: ``[K, K]``, from the first state to the second; none is negative.

    Example:
        >>> chains = LargeChains(num_chains=5, num_states=20, lengths=(4, 6))
        >>> labels = chains.truth.decode(chains)  # by the weights that the chains were drawn from
        >>> len(labels) == int(chains.lengths.sum())
        True
    """

    emission: SparseRows
    transition: SparseRows

    def load_into(self, head: Any) -> None:
        """Write the weights into a ``SparseLinearChain`` or ``LinearChain``, for comparison, not for training.

        Raises:
            ValueError: The head has other sizes.
        """
        shapes = (len(self.emission), self.emission.num_columns)
        if tuple(head.by_feature(head.emission).shape) != shapes or head.transition.shape != (shapes[1], shapes[1]):
            raise ValueError(f"head must have in_features={shapes[0]} and num_states={shapes[1]}")
        with torch.no_grad():
            for weights in head.parameters():
                weights.zero_()
            head.by_feature(head.emission).copy_(self.emission.dense())
            head.transition.copy_(self.transition.dense())

    def decode(self, chains: SparseChains) -> Tensor:
        """The best states of all tokens, int64 ``[tokens]``.

        Viterbi's recursion in time proportional to the number of nonzero transitions: all other transitions come from
        the best state of the token before.

        Raises:
            ValueError: The chains have other numbers of features or states.
        """
        check_object(chains, "chains", "collate", "SparseChains(...)")
        if (chains.in_features, chains.num_states) != (len(self.emission), self.emission.num_columns):
            raise ValueError(
                f"chains have in_features={chains.in_features} and num_states={chains.num_states}, must be "
                f"{len(self.emission)} and {self.emission.num_columns}, as the truth has"
            )
        decoded = torch.empty(len(chains.states), dtype=torch.int64)
        longest, states = int(chains.lengths.max()), self.emission.num_columns
        for part in torch.arange(len(chains)).split(max(_ENTRIES // (longest * states), 1)):
            tokens = torch.cat([torch.arange(*chains.offsets[i : i + 2].tolist()) for i in part.tolist()])
            decoded[tokens] = torch.from_numpy(self._decode(chains, part, tokens))
        return decoded

    def _decode(self, chains: SparseChains, part: Tensor, tokens: Tensor) -> np.ndarray:
        """The best states of some chains, one chain after another."""
        scores = self._emissions(chains, tokens)  # [T, K]; later the best score of the states up to here
        lengths = chains.lengths[part].numpy()
        starts = np.cumsum(lengths) - lengths
        before, extra, runs, reached = self._incoming
        for t in range(1, int(lengths.max())):
            now = (starts + t)[lengths > t]
            last = scores[now - 1]
            best = np.repeat(last.max(1, keepdims=True), last.shape[1], axis=1)
            if len(reached):
                ways = np.maximum.reduceat(last[:, before] + extra, runs[:-1], axis=1)
                best[:, reached] = np.maximum(best[:, reached], ways)
            scores[now] += best
        states = np.empty(len(scores), np.int64)
        place = np.full(scores.shape[1], -1)
        place[reached] = np.arange(len(reached))
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            state = int(scores[start + length - 1].argmax())
            states[start + length - 1] = state
            for token in range(start + length - 2, start - 1, -1):
                row, at = scores[token], place[state]
                state = int(row.argmax())
                if at >= 0:
                    run = slice(runs[at], runs[at + 1])
                    ways = row[before[run]] + extra[run]
                    if ways.max() > row[state]:
                        state = int(before[run][ways.argmax()])
                states[token] = state
        return states

    @cached_property
    def _incoming(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The nonzero transitions sorted by second state: first states, weights, the start of each run (and the end),
        and the second state of each run.
        """
        rows = self.transition
        order = torch.argsort(rows.indices.long() * len(rows) + rows.row)
        reached, counts = np.unique(rows.indices.numpy(), return_counts=True)
        runs = np.concatenate([[0], np.cumsum(counts)])
        return rows.row[order].numpy(), rows.values[order].double().numpy(), runs, reached

    def _emissions(self, chains: SparseChains, tokens: Tensor) -> np.ndarray:
        """float64 ``[T, K]``."""
        lists = SparseRows(
            chains.rows,
            chains.columns,
            torch.ones(len(chains.columns)) if chains.values is None else chains.values,
            chains.in_features,
        )
        columns, values = lists.lists(tokens)
        token, slot = (columns >= 0).nonzero(as_tuple=True)
        states, weights = self.emission.lists(columns[token, slot])  # [M, Q]
        key = token[:, None] * chains.num_states + states
        real = states >= 0
        amounts = (weights.double() * values[token, slot].double()[:, None])[real]
        size = len(tokens) * chains.num_states
        total = np.bincount(key[real].numpy(), amounts.numpy(), minlength=size)
        return total.astype(np.float64).reshape(len(tokens), -1)  # NumPy makes integers of an empty list


class LargeChains(SparseChains):
    """Chains drawn from a hidden Markov model whose states number thousands, with lists of features for every token.

    A state is followed by one of ``successors`` others, with probabilities that depend on it, and with probability
    ``surprise`` by any. A token has ``draws`` features, each one of the ``own`` features of its state, or with
    probability ``noise`` any. The first state is uniform. The log-posterior of a labeling is linear in the features of
    ``SparseLinearChain``, with sparse weights :attr:`truth`, whose argmax is the most probable labeling: no method is
    right about more chains on average.

    With as many features as states, the default, a feature belongs to ``own`` states on average, so that a token alone
    is ambiguous; see :attr:`truth_error`. Items and batches are as in :class:`SparseChains`; a value is how often
    the feature was drawn. The same arguments give the same chains; both splits have the same truth.

    Args:
        split: ``"train"`` or ``"test"``.
        num_chains: n.
        num_states: K, at least 2.
        in_features: F; None is K.
        lengths: The shortest and the longest chain; all lengths between are as likely.
        successors: States that usually follow one.
        surprise: Probability that any state follows, above 0 and below 1.
        draws: Features of a token.
        own: Features of a state.
        noise: Probability that a feature is any, above 0 and below 1.
        seed: Seed of the truth and of the draws.

    Attributes:
        truth: The weights with the highest posterior.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> chains = LargeChains(num_chains=5, num_states=20, lengths=(4, 6))
        >>> x, y, index = chains[0]
        >>> x.columns.shape[0] == len(y)
        True
        >>> SparseLinearChain(chains.in_features, chains.num_states).structure.num_states
        20
    """

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        num_chains: int = 1000,
        num_states: int = 1000,
        in_features: int | None = None,
        lengths: tuple[int, int] = (10, 20),
        successors: int = 4,
        surprise: float = 0.1,
        draws: int = 3,
        own: int = 4,
        noise: float = 0.3,
        seed: int = 0,
    ) -> None:
        features = num_states if in_features is None else in_features
        check_choice(split, "split", "train", "test")
        if not isinstance(lengths, tuple | list) or len(lengths) != 2:
            raise TypeError(f"lengths={lengths!r} must be a pair, the shortest and the longest")
        shortest, longest = lengths
        counts = {"num_chains": num_chains, "in_features": features, "lengths[0]": shortest, "successors": successors}
        for name, value, least in (
            *((name, value, 1) for name, value in counts.items()),
            *(("draws", draws, 1), ("own", own, 1), ("lengths[1]", longest, shortest)),
            *(("num_states", num_states, 2), ("seed", seed, 0)),
        ):
            check_whole(value, name, least)
        for name, share in (("surprise", surprise), ("noise", noise)):
            if not 0.0 < as_number(share, name) < 1.0:
                raise ValueError(f"{name}={share!r} must be a probability above 0 and below 1")
        random = np.random.default_rng([seed, _STREAMS["truth"]])
        followers = random.integers(num_states, size=(num_states, successors))
        chances = random.dirichlet(np.ones(successors), num_states)
        owned = random.integers(features, size=(num_states, own))
        self.split = split
        # Log-odds relative to any state and any feature: a common constant does not change the argmax.
        every = np.repeat(np.arange(num_states), own)
        odds = np.full(owned.size, (1.0 - noise) * features / (own * noise))
        starts = np.repeat(np.arange(num_states), successors)
        ahead = chances.ravel() * (1.0 - surprise) * num_states / surprise
        self.truth = ChainTruth(
            _log_odds(owned.ravel(), every, odds, (features, num_states)),
            _log_odds(starts, followers.ravel(), ahead, (num_states, num_states)),
        )

        random = np.random.default_rng([seed, _STREAMS[split]])
        sizes = random.integers(shortest, longest + 1, size=num_chains)
        path = np.empty((num_chains, longest), np.int64)
        path[:, 0] = random.integers(num_states, size=num_chains)
        cumulated = chances.cumsum(1)
        for t in range(1, longest):
            last = path[:, t - 1]
            which = (random.random((num_chains, 1)) > cumulated[last, :-1]).sum(1)
            anything = random.random(num_chains) < surprise
            path[:, t] = np.where(anything, random.integers(num_states, size=num_chains), followers[last, which])
        states = path[np.arange(longest) < sizes[:, None]]
        mine = owned[states[:, None], random.integers(own, size=(len(states), draws))]
        strange = random.random(mine.shape) < noise
        drawn = np.where(strange, random.integers(features, size=mine.shape), mine)
        key, times = np.unique(np.arange(len(states))[:, None] * features + drawn, return_counts=True)
        super().__init__(
            offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])),
            rows=torch.from_numpy(np.searchsorted(key // features, np.arange(len(states) + 1))),
            columns=torch.from_numpy((key % features).astype(np.int32)),
            states=torch.from_numpy(states),
            in_features=features,
            num_states=num_states,
            values=torch.from_numpy(times.astype(np.float32)),
        )

    @cached_property
    def truth_error(self) -> float:
        """Share of the tokens that the most probable labelings get wrong; decoded at the first use."""
        return float((self.truth.decode(self) != self.states).double().mean())


def _log_odds(rows: np.ndarray, columns: np.ndarray, odds: np.ndarray, shape: tuple[int, int]) -> SparseRows:
    """log(1 + odds); the odds of the same place are summed."""
    key, place = np.unique(rows * shape[1] + columns, return_inverse=True)
    total = np.bincount(place.ravel(), odds, minlength=len(key))
    counts = np.bincount(key // shape[1], minlength=shape[0])
    return SparseRows.of(counts, key % shape[1], np.log1p(total), shape[1])
