"""Sequence labelling: one label for every token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from torchssvm.core.arguments import check_flags, check_whole
from torchssvm.core.batch import Batch, in_order
from torchssvm.core.named_features import FeatureLists, vocabulary_of
from torchssvm.estimators.base import StructuredEstimator
from torchssvm.estimators.examples import Examples, padded
from torchssvm.estimators.labels import accuracy, check_lists, padded_states, states_of, weights_of
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.chain.sparse_head import SparseLinearChain
from torchssvm.structures.chain.structure import Chain


class ChainSVC(StructuredEstimator):
    """Labels sequences by a linear chain, as a CRF does, trained by max margin to a certified gap.

    The score of a sequence of labels is the sum of ``coef_`` times the features of each token, of ``transitions_`` of
    neighbours, and of ``intercept_``, ``start_`` and ``end_``. The model of [Lacoste-Julien et al. 2013].

    ``X`` is a list of arrays ``[N_i, F]``, one row for each token; or a list of lists of tokens, each token a
    dictionary ``{name: text, number, True or False}`` or a list of names, as sklearn-crfsuite takes them. A text
    becomes the feature ``name=text``. ``y`` is a list of lists of labels, texts or numbers.

    Args:
        C: Weight of the loss, positive; ``1/2 |w|^2 + C sum_i loss_i`` is minimised.
        lam: ``1 / (C n)`` in its place, the regularisation as the papers write it; None means that ``C`` counts.
        normalize: Whether the loss of a sequence, its number of wrong labels, is divided by its length.
        min_count: How often a named feature must occur in training to have a weight.
        class_weight: None, "balanced", or a dictionary by label: the cost of a wrong label, by the true one.
        tol: Training ends when the objective is proved to be within this share of its optimum.
        max_passes: Or after so many passes over the data, with a ``ConvergenceWarning``.
        random_state: Seed of the order in which examples are visited.
        verbose: Whether a line of progress is shown on stderr, with the gap.
        warm_start: Whether ``fit`` goes on from the last fit of the same data, as with another ``C`` or ``tol``.

    Attributes:
        classes_: ``[K]``, the labels in ascending order.
        vocabulary_: The column of each named feature; None where X held arrays.
        coef_: ``[K, F]``.
        intercept_, start_, end_: ``[K]``: for every token, and more for the first and for the last.
        transitions_: ``[K, K]``, from the label before to the label after.
        n_features_in_: F.
        certificate_: The exact primal, dual and gap of these weights.
        n_passes_: Passes over the data, exact ones included.
        history_: Passes, primal, dual, gap and seconds of every exact pass, one dictionary each.
        head_, structure_: The trained torch module and what decodes its scores.

    Example:
        >>> X = [[{"word": "the"}, {"word": "cat"}, {"word": "sat"}], [{"word": "a"}, {"word": "dog"}]]
        >>> tagger = ChainSVC(C=10.0).fit(X, [["DT", "NN", "VB"], ["DT", "NN"]])
        >>> tagger.predict([[{"word": "the"}, {"word": "dog"}]])
        [['DT', 'NN']]
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        lam: float | None = None,
        normalize: bool = False,
        min_count: int = 1,
        class_weight: Any = None,
        tol: float = 0.01,
        max_passes: float = 1000.0,
        random_state: Any = None,
        verbose: bool = False,
        warm_start: bool = False,
    ) -> None:
        super().__init__(
            C,
            lam=lam,
            tol=tol,
            max_passes=max_passes,
            random_state=random_state,
            verbose=verbose,
            warm_start=warm_start,
        )
        self.normalize = normalize
        self.min_count = min_count
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any) -> ChainSVC:
        """Train on the sequences ``X`` and their labels ``y``.

        Raises:
            ValueError: A parameter is out of range, there is one label only, or X and y do not fit.
            TypeError: A token is neither a row of an array, nor a dictionary, nor a list of names.
        """
        self._check_parameters()
        check_flags(normalize=self.normalize)
        least = check_whole(self.min_count, "min_count")
        dense = _check_sequences(X)
        check_lists(X, y, [len(sequence) for sequence in X], "token")
        classes, states = states_of(y)
        weights = weights_of(self.class_weight, classes, states)
        vocabulary = None if dense else vocabulary_of(X, least)
        size = np.asarray(X[0]).shape[1] if vocabulary is None else len(vocabulary)
        if not size:
            raise ValueError(f"X has no feature that occurs min_count={least} times: every token needs some")
        structure = Chain(len(classes), normalize=self.normalize, class_weight=weights)
        head = (LinearChain if dense else SparseLinearChain)(size, len(classes), structure=structure)
        if dense and any(np.asarray(sequence).dtype == np.float64 for sequence in X):
            head = head.double()
        self.classes_, self.vocabulary_, self.n_features_in_ = classes, vocabulary, size
        head = self._train(head, self._examples(X, states))
        self.coef_ = head.by_feature(head.emission.detach()).numpy().T.copy()
        found = (head.transition, head.bias, head.start_transitions, head.end_transitions)
        self.transitions_, self.intercept_, self.start_, self.end_ = (
            tensor.detach().numpy().copy() for tensor in found if tensor is not None
        )
        return self

    def _examples(self, X: Any, states: Sequence[np.ndarray] | None = None) -> Examples:
        """The sequences as a training set; without states, of label 0 throughout."""
        lengths = np.array([len(sequence) for sequence in X], np.int64)
        y = [np.zeros(length, np.int64) for length in lengths] if states is None else states
        lists = None if self.vocabulary_ is None else FeatureLists(X, self.vocabulary_)
        arrays = None if lists is not None else _arrays(X, self.n_features_in_)

        def fetch(rows: np.ndarray) -> Batch:
            x: Any = lists.batch(torch.from_numpy(rows)) if arrays is None else padded([arrays[i] for i in rows], 0.0)  # type: ignore
            return Batch(x, padded_states(y, rows), torch.from_numpy(rows), torch.from_numpy(lengths[rows]))

        return Examples(fetch, lengths)

    def predict(self, X: Any) -> list[list[Any]]:
        """The labels with the highest score for every sequence, a list of lists like ``y``."""
        found: list[list[Any]] = [[] for _ in X]
        for index, length, potentials in self._scored(X):
            labels = self.structure_.argmax(potentials).labeling.numpy()
            for i, size, row in zip(index, length, labels, strict=True):
                found[i] = self.classes_[row[:size]].tolist()
        return found

    def decision_function(self, X: Any) -> list[np.ndarray]:
        """The scores of single labels, ``[N_i, K]`` for every sequence, intercepts included; transitions are not."""
        found: list[Any] = [None] * len(X)
        for index, length, potentials in self._scored(X):
            for i, size, row in zip(index, length, potentials["emission"].numpy(), strict=True):
                found[i] = row[:size].copy()
        return found

    def score(self, X: Any, y: Any) -> float:
        """The share of tokens with the right label."""
        check_lists(X, y, [len(sequence) for sequence in X], "token")
        return accuracy(y, self.predict(X))

    def _scored(self, X: Any) -> Any:
        check_is_fitted(self)
        if not len(X):
            return
        if _check_sequences(X) != (self.vocabulary_ is None):
            kind = "arrays" if self.vocabulary_ is None else "lists of tokens with named features"
            raise ValueError(f"X must hold {kind}, as in fit")
        examples = self._examples(X)
        with torch.no_grad():
            for batch in in_order(examples, lengths=examples.lengths):
                assert batch.lengths is not None
                yield batch.index.tolist(), batch.lengths.tolist(), self.head_(batch.x, batch.lengths)


def _check_sequences(X: Any) -> bool:
    """Whether the sequences are arrays.

    Raises:
        ValueError: There is none, or one has no token, or some are arrays and some are not.
    """
    if isinstance(X, str) or not hasattr(X, "__len__") or not len(X):
        raise ValueError("X must be a list of sequences, at least one")
    for place, sequence in enumerate(X):
        if not hasattr(sequence, "__len__") or isinstance(sequence, str) or not len(sequence):
            raise ValueError(f"X[{place}]={sequence!r} must be a sequence of at least one token")
    kinds = {_is_array(sequence) for sequence in X}
    if len(kinds) > 1:
        raise ValueError("X has arrays and lists of tokens: give either for all sequences")
    return kinds.pop()


def _is_array(sequence: Any) -> bool:
    if isinstance(sequence, np.ndarray) and sequence.dtype != object:
        return True
    token = next(itertools.chain(sequence))
    return isinstance(token, np.ndarray) or (
        isinstance(token, list | tuple) and bool(token) and isinstance(token[0], int | float | np.number)
    )


def _arrays(X: Any, size: int) -> list[np.ndarray]:
    """The sequences as floating arrays ``[N_i, F]`` of one dtype.

    Raises:
        ValueError: A shape does not fit, or a number is not finite.
    """
    found = [np.asarray(sequence) for sequence in X]
    dtype = np.float64 if any(array.dtype == np.float64 for array in found) else np.float32
    found = [array.astype(dtype, copy=False) for array in found]
    for place, array in enumerate(found):
        if array.ndim != 2 or array.shape[1] != size:
            raise ValueError(
                f"X[{place}] has shape {list(array.shape)}, and [N, {size}] is expected: a row for a token"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"X[{place}] has numbers that are not finite")
    return found
