"""Sequence labelling: one label for every token."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchssvm.core.arguments import check_choice, check_type, check_whole, naming
from torchssvm.core.sparse_features import NamedLists
from torchssvm.datasets.text.tag_schemes import SCHEMES
from torchssvm.estimators.base import SequenceEstimator
from torchssvm.estimators.examples import (
    ARRAYS,
    NAMED,
    PerExample,
    accuracy,
    batches_of,
    check_list,
    check_lists,
    counted,
    kind_of,
    labelled,
    listed,
    padded,
    rows_of,
    size_of,
    state_weights,
    states_of,
)
from torchssvm.structures.chain.head import LinearChain, SparseLinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.chain.transitions import Transitions


@dataclass(eq=False, repr=False, kw_only=True)
class ChainSVC(SequenceEstimator):
    """Labels sequences by a linear chain, as a CRF does, trained by max margin to a certified gap.

    The score of a sequence of labels is the sum of ``coef_`` times the features of each token, of ``transitions_`` of
    neighbours, and of ``intercept_``, ``start_`` and ``end_``. The model of [Lacoste-Julien et al. 2013].

    ``X`` is a list of arrays or of scipy sparse matrices ``[N_i, F]``, one row for each token; or a list of lists of
    tokens, each token a dictionary ``{name: text, number, True or False}`` or a list of names, as sklearn-crfsuite
    takes them. A text becomes the feature ``name=text``. ``y`` is a list of lists of labels, texts or numbers.
    Generators are read, once.

    Args:
        C, lam, tol, max_passes, random_state, verbose, warm_start: As in :class:`MultinomialSVC`.
        normalize: Whether the loss of a sequence, its number of wrong labels, is divided by its length.
        min_count: How often a named feature must occur in training to have a weight.
        class_weight: None, "balanced", or a dictionary by label: the cost of a wrong label, by the true one.
        transitions: Which sequences of labels are predicted: "BIO" or "BIOES" for labels of this scheme, or
            :class:`torchssvm.structures.Transitions` of the labels in the order of ``classes_``; None allows all.

    Attributes:
        classes_: ``[K]``, the labels in ascending order; labels that ``partial_fit`` added come last.
        vocabulary_: The column of each named feature, new ones last; None where X was arrays or matrices.
        coef_: ``[K, F]``.
        intercept_, start_, end_: ``[K]``: for every token, and more for the first and for the last.
        transitions_: ``[K, K]``, from the label before to the label after.
        temperature_: Scores are divided by it for probabilities; :meth:`calibrate` sets it.
        n_features_in_, feature_names_in_: F; and the names of columns, where X had them.
        certificate_, n_passes_, history_, head_, structure_: As in :class:`MultinomialSVC`.

    Example:
        >>> X = [[{"word": "the"}, {"word": "cat"}, {"word": "sat"}], [{"word": "a"}, {"word": "dog"}]]
        >>> tagger = ChainSVC(C=10.0).fit(X, [["DT", "NN", "VB"], ["DT", "NN"]])
        >>> tagger.predict([[{"word": "the"}, {"word": "dog"}]])
        [['DT', 'NN']]
    """

    normalize: bool = False
    min_count: int = 1
    class_weight: Any = None
    transitions: Transitions | str | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ChainSVC:
        """Train on the sequences ``X`` and their labels ``y``.

        Args:
            sample_weight: ``[n]``, how often each sequence counts, as in :class:`MultinomialSVC`.

        Raises:
            ValueError: A parameter is out of range, a sequence is empty, there is one label only, a label is missing,
                ``transitions`` forbid labels of a sequence, or X and y do not fit.
            TypeError: A token is neither a row of an array, nor a dictionary, nor a list of names; or ``transitions``
                are neither a scheme nor Transitions.
        """
        self._adds = False
        X, y = listed(X), listed(y)
        self._fit(X, y, sample_weight)
        self._data = (list(X), list(y)) if sample_weight is None else None
        return self

    def partial_fit(self, X: Any, y: Any) -> ChainSVC:
        """Add the sequences ``X`` to the training set of earlier calls, and go on to the optimum for all.

        New features and labels are added behind the old ones, in ``vocabulary_`` and ``classes_`` too.

        Raises:
            ValueError: As :meth:`fit`, of all sequences; or the estimator is a copy of a trained one.
            TypeError: As :meth:`fit`.
        """
        X, y = listed(X), listed(y)
        check_list(X)
        return self._add(list(X), list(y), lambda rows, labels, stay: self._fit(rows, labels, stay=stay))

    def _fit(self, X: Any, y: Any, sample_weight: Any = None, stay: int = 0) -> ChainSVC:
        """Train on all sequences, from the last fit where the estimator goes on; it has read the first ``stay``."""
        self._check_parameters()
        check_list(X)
        X, y, times, total = counted(X, y, sample_weight)
        least = check_whole(self.min_count, "min_count")
        goes_on = self._goes_on and self._run is not None
        known = self.classes_ if goes_on else None
        more, added = X[stay:], y[stay:]
        with naming(torch.arange(len(more))) if stay else nullcontext():
            kind, lengths = kind_of(more), [size_of(sequence) for sequence in more]
            self._check_names(more, reset=self._begins and not stay)
            rows: Any = more if kind == NAMED else rows_of(more)
            labels = check_lists(added, lengths, "token")
            classes, states = states_of(labels, known)
            if kind == NAMED:
                rows = self._encoded[2].with_more(more) if stay and self._encoded[0] == NAMED else NamedLists(more)
        if stay:
            last_kind, last_lengths, last_rows, last_states = self._encoded
            if kind != last_kind or (kind != NAMED and _form(rows) != _form(last_rows)):
                return self._fit(X, y)  # raises the error
            lengths, states = [*last_lengths, *lengths], [*last_states, *states]
            rows = rows if kind == NAMED else [*last_rows, *rows]
        weights = state_weights(self.class_weight, classes, states, times)
        encoded = kind, lengths, rows, states
        columns: dict[str, int] | None = getattr(self, "vocabulary_", None) if goes_on else None
        vocabulary = rows.vocabulary(least, columns) if kind == NAMED else None
        rows = rows if vocabulary is None else rows.lists(vocabulary)
        size = rows[0].shape[1] if vocabulary is None else len(vocabulary)
        if not size:
            raise ValueError(f"X has no feature that occurs min_count={least} times: give a smaller min_count")
        allowed: Any = self.transitions
        if isinstance(allowed, str):
            check_choice(allowed, "transitions", *SCHEMES)
            allowed = SCHEMES[allowed](list(map(str, classes)))
        check_type(allowed, Transitions | None, "transitions", "None, 'BIO', 'BIOES' or Transitions")
        structure = Chain(len(classes), normalize=self.normalize, class_weight=weights, transitions=allowed)
        _check_outputs(structure, states, classes)
        head = (LinearChain if kind == ARRAYS else SparseLinearChain)(size, len(classes), structure=structure)
        if vocabulary is None and rows[0].dtype == np.float64:
            head = head.double()
        examples = labelled(lengths, states, batches_of(rows))
        others = bool(stay and vocabulary) and rows.has_beyond(len(columns or ()), stay)
        head = self._train(head, examples, self._lam(total or len(lengths)), weight=times, stay=stay, changed=others)
        self._encoded = encoded if self._goes_on else None
        self.classes_, self.vocabulary_, self.n_features_in_, self._kind = classes, vocabulary, size, kind
        self.coef_ = head.by_feature(head.emission.detach()).numpy().T.copy()
        trained = (head.transition, head.bias, head.start_transitions, head.end_transitions)
        self.transitions_, self.intercept_, self.start_, self.end_ = (
            tensor.detach().numpy().copy() for tensor in trained if tensor is not None
        )
        return self

    def predict(self, X: Any) -> PerExample:
        """The labels with the highest score for every sequence, a list of lists like ``y``; [] for an empty one."""
        sequences = self._by_sequence(X, np.zeros(0, np.int64), lambda potentials: self.structure_.decode(potentials))
        return PerExample(self.classes_[states].tolist() for states in sequences)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of tokens with the right label; ``sample_weight`` as in :meth:`fit`."""
        X, y = listed(X), listed(y)
        check_list(X)
        y = check_lists(y, [size_of(sequence) for sequence in X], "token")
        return accuracy(y, self.predict(X), self.classes_, sample_weight)

    def _states(self, y: Any, lengths: list[int]) -> list[np.ndarray]:
        classes, states = states_of(check_lists(y, lengths, "token"), self.classes_)
        self._check_known(classes)
        _check_outputs(self.structure_, states, self.classes_)
        return states


def _check_outputs(structure: Chain, states: list[np.ndarray], classes: np.ndarray) -> None:
    if structure.transitions is not None:
        structure.transitions.check(padded(states, -1), classes.tolist())


def _form(rows: Any) -> tuple[Any, int]:
    return rows[0].dtype, rows[0].shape[1]
