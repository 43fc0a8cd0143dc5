"""Probabilities, by one temperature that is fitted to examples which were not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from types import MethodType
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from torchssvm.core.arguments import naming
from torchssvm.core.batch import in_order
from torchssvm.core.marginals import marginals_at
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import FeatureLists
from torchssvm.estimators.base import StructuredEstimator
from torchssvm.estimators.examples import (
    NAMED,
    batches_of,
    check_list,
    kind_of,
    labelled,
    listed,
    padded,
    rows_of,
    size_of,
)
from torchssvm.solvers.evaluation import fit_temperature


class once_calibrated:  # a decorator
    """A method that a calibrated estimator has; before, the AttributeError that ``hasattr`` expects says what to do."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        update_wrapper(self, method)  # type: ignore[arg-type]  # it copies name and docstring

    def __get__(self, estimator: Any, kind: Any = None) -> Any:
        if estimator is None:
            return self.method
        if not hasattr(estimator, "temperature_"):
            raise AttributeError(
                f"margins are no probabilities: call calibrate(X, y), with examples that fit has not seen, before "
                f"{self.method.__name__}(X)"
            )
        return MethodType(self.method, estimator)


class CalibratedEstimator(StructuredEstimator):
    """An estimator whose structure has ``marginals``; ``temperature_`` is there once it is calibrated."""

    temperature_: float

    def _fit_temperature(self, structure: Any, examples: Iterable[tuple[Potentials, Any]]) -> Any:
        self.temperature_ = fit_temperature(structure, examples)
        return self

    def _check_known(self, labels: np.ndarray) -> None:
        """Raise ValueError if one of the labels was not there in training."""
        if len(new := labels[~np.isin(labels, self.classes_)].tolist()):
            raise ValueError(f"y has the label {new[0]!r}, which was not there in training: leave it out")


class SequenceEstimator(CalibratedEstimator):
    """An estimator of a label for each token or frame of sequences."""

    vocabulary_: Any = None
    _kind: str

    def _states(self, y: Any, lengths: list[int]) -> list[np.ndarray]:
        """The target of every sequence, in the known labels; ValueError where there are others."""
        raise NotImplementedError

    def calibrate(self, X: Any, y: Any) -> Any:
        """Fit one temperature to sequences that ``fit`` has not seen, for :meth:`predict_proba`.

        It is the T that makes their labels most probable, ``P(y) = exp(score(y) / T) / Z``: without it, scores of max
        margin are not those of probabilities. What is predicted stays as it is; another ``fit`` forgets it.

        Args:
            X: As in :meth:`fit`, no sequence empty.
            y: As there, with labels of ``classes_``.

        Raises:
            ValueError: X and y do not fit, or a label was not there in training.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        X, y = listed(X), listed(y)
        kind_of(X)  # checked before sizes are read
        states = self._states(y, [size_of(sequence) for sequence in X])
        scored = self._scored(X)
        return self._fit_temperature(
            self.structure_, ((potentials, padded([states[i] for i in index], -1)) for index, _, potentials in scored)
        )

    @once_calibrated
    def predict_proba(self, X: Any) -> list[np.ndarray]:
        """The probability of each label of each token, or frame, summed over all outputs, by :meth:`calibrate`.

        Returns:
            ``[N_i, K]`` float64 for every sequence.
        """

        def masses(potentials: Potentials) -> torch.Tensor:
            return marginals_at(self.structure_, potentials, self.temperature_).parts["emission"]

        return self._each(X, masses)

    def decision_function(self, X: Any) -> list[np.ndarray]:
        """The margin of each label of each token, or frame, ``[N_i, K]`` float64 for every sequence.

        It is the best score of an output with it, less that of the best without it: not below 0 for what ``predict``
        finds, and not above for others. Its size says how sure the model is.
        """
        check_is_fitted(self)
        return self._each(X, lambda potentials: self.structure_.max_marginals(potentials))

    def _each(self, X: Any, found_of: Callable[[Potentials], torch.Tensor]) -> list[np.ndarray]:
        """``[N_i, K]`` for every sequence, of what is found for a batch, ``[B, N, at least K]``."""
        X = listed(X)
        check_list(X)
        found = [np.zeros((0, len(self.classes_))) for _ in X]
        for index, length, potentials in self._scored(X):
            for i, size, row in zip(index, length, found_of(potentials).numpy(), strict=True):
                found[i] = row[:size, : len(self.classes_)].copy()
        return found

    def _scored(self, X: Any) -> Any:
        """The places, the lengths and the potentials of the sequences that are not empty, in batches."""
        check_is_fitted(self)
        full = [place for place, sequence in enumerate(X) if not hasattr(sequence, "__len__") or size_of(sequence)]
        if not full:
            return
        own = [X[place] for place in full]
        with naming(torch.tensor(full)):
            if kind_of(own) != self._kind:
                raise ValueError(f"X must hold {self._kind}, as in fit")
            named = self._kind == NAMED
            rows = FeatureLists(own, self.vocabulary_ or {}) if named else rows_of(own, self.n_features_in_)
            examples = labelled([size_of(sequence) for sequence in own], None, batches_of(rows))
        for batch in in_order(examples, lengths=examples.lengths):
            assert batch.lengths is not None
            with torch.no_grad():  # not around the yield: where the caller raises, it would stay
                potentials = self.head_(batch.x, batch.lengths)
            potentials.index = torch.tensor(full)[batch.index]
            yield potentials.index.tolist(), batch.lengths.tolist(), potentials
