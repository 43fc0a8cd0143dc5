"""Base classes of the estimators: parameters, training to a certified gap, probabilities, sequences."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from functools import update_wrapper, wraps
from inspect import signature
from types import MethodType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from torchssvm.core.arguments import check_flags, check_number, check_share, is_whole, naming, or_default
from torchssvm.core.batch import fetcher, in_order, rows_in_order, tree_tensors
from torchssvm.core.marginals import marginals_at
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import FeatureLists
from torchssvm.deployment import SavedModel, save_model
from torchssvm.deployment.weight_tables import NamedWeights
from torchssvm.dual.checks import digest_targets
from torchssvm.estimators.examples import (
    NAMED,
    PerExample,
    batches_of,
    check_counts,
    check_list,
    check_matrix,
    check_missing,
    columns_of,
    kind_of,
    listed,
    padded,
    rows_of,
    size_of,
)
from torchssvm.solvers.advice import advice_if_small, warn_if_stiff, warn_if_zero
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.evaluation import fit_temperature
from torchssvm.solvers.solver import Relative, Solver, is_within
from torchssvm.solvers.training import make_trainer
from torchssvm.structures.weighted import WeightedExamples, WeightedHead

MATRIX: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
_OF_RUN = ("_run", "_encoded", "_data", "_adds")
_MAY_CHANGE = ("C", "lam", "tol", "max_passes", "random_state", "verbose", "threshold")
_FLAGS = ("fit_intercept", "interactions", "normalize", "warm_start")


class _Run(NamedTuple):
    trainer: Any
    head: Any
    digests: torch.Tensor | None  # of its examples, with warm_start
    settings: str  # the parameters of the estimator, but for _MAY_CHANGE


class CertifiedEstimator(BaseEstimator):
    """Minimises ``lam/2 |w|^2 + (1/n) sum_i t_i max_y [loss(y) + score(y) - score(y_i)]`` to a certified gap.

    ``t_i`` is the ``sample_weight`` of an example, 1 where none is given, and n is their sum.

    Subclasses have the common parameters ``tol``, ``max_passes``, ``random_state`` and ``verbose``, and ``warm_start``
    where they keep runs; they call :meth:`_train`.
    """

    _run: _Run | None = None  # while the estimator may go on
    _data: Any = None  # X and y of the last fit, with those that partial_fit has added
    _adds: bool = False  # whether partial_fit has added examples since fit

    tol: float
    max_passes: float
    random_state: Any
    verbose: Any
    warm_start: Any = False
    head_: Any
    structure_: Any
    classes_: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls).keys() & {"fit", "partial_fit"}:
            setattr(cls, name, _or_as_before(vars(cls)[name]))

    @property
    def _goes_on(self) -> bool:
        return bool(self.warm_start) or self._adds

    @property
    def _begins(self) -> bool:
        """Whether a fit names the features: it does not go on from one that did."""
        return not (self.warm_start and hasattr(self, "head_"))

    def _check_names(self, tables: Iterable[Any], reset: bool = False) -> None:
        """Check the names of columns as scikit-learn does; ``reset`` stores the names of the first table."""
        kinds = {str(list(getattr(table, "columns", ()))): table for table in tables}
        if not reset and kinds.keys() == {"[]"} and not hasattr(self, "feature_names_in_"):
            return  # scikit-learn's check imports and asks all packages of tables
        for table in kinds.values():
            validate_data(self, table, reset=reset, skip_check_array=True, ensure_2d=False)
            reset = False

    def _check_run(self) -> None:
        check_share(self.tol, "tol")
        check_number(self.max_passes, "max_passes", above=0.0)
        given = self.get_params(deep=False)
        flags = {name: given[name] for name in _FLAGS if name in given}
        check_flags(**{name: flag for name, flag in flags.items() if name != "interactions" or flag is not None})
        if not is_whole(self.verbose):  # scikit-learn's estimators take verbose=1
            check_flags(verbose=self.verbose)

    def _train(
        self,
        head: Any,
        examples: Any,
        lam: float,
        solver: Solver | None = None,
        weight: np.ndarray | None = None,
        stay: int = 0,
        changed: bool = False,
    ) -> Any:
        """The head, trained to the gap, or the head of the last fit if it goes on; sets the fitted attributes.

        ``solver`` gives rules and bounds; the estimator gives the seed. ``weight`` ``[n]`` multiplies the hinges. The
        first ``stay`` examples are examples of the last fit, whose features may have ``changed``.
        """
        if weight is not None and not (weight == 1.0).all():
            head, examples = WeightedHead(head), WeightedExamples(examples, weight)
            bounds = {f"head.{name}": pair for name, pair in (solver.bounds or {}).items()} if solver else None
            solver = replace(solver, bounds=bounds) if solver and bounds else solver
        parameters = self.get_params(deep=False)
        settings = repr({name: value for name, value in parameters.items() if name not in _MAY_CHANGE})
        run = self._run_to_continue(head, settings)
        digests: Any = _digests(examples) if self.warm_start else None
        before = run.digests if run is not None and digests is not None else None
        if stay and before is not None:
            digests[:stay] = before[:stay]  # of the packed examples, even if their arrays have changed
        if run is not None and before is not None and torch.equal(before, digests):
            trainer, head = run.trainer, run.head
            if trainer.dual.lam != lam:
                trainer.dual.change_lam(lam)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            solver = replace(or_default(solver, Solver, "solver"), seed=seed)
            start: dict[str, Any] = {}
            if run is not None and (stay or before is not None):
                kept = None if stay or before is None else _places(before, digests)
                start = {"start": run.trainer.dual if changed else run.trainer, "kept": kept}
            trainer = make_trainer(head, examples, lam, solver=solver, progress=bool(self.verbose), **start)
        self._run = _Run(trainer, head, digests, settings) if self._goes_on else None
        return self._train_to_gap(trainer, head, examples, lam)

    def _run_to_continue(self, head: Any, settings: str) -> _Run | None:
        """The last run, if this fit goes on from it; ValueError if the weights of ``head`` are others than its."""
        run = self._run if self._goes_on else None
        if run is None:
            return None
        structure, last = head.structure, run.head.structure
        extends = structure._extends(last)
        if not extends:  # examples that are weighted now, or classes that others balance, have other losses
            balanced = getattr(self, "class_weight", None) == "balanced" and settings == run.settings
            if type(structure) is not type(last) or balanced:
                return None
        if not (extends and _form(head) == _form(run.head)):
            named = "classes" in signature(getattr(self, "partial_fit", self._train)).parameters
            advice = "name all classes in the first partial_fit, classes=[...]; or " if named else ""
            raise ValueError(
                "warm_start=True and partial_fit need the labels, the dtype of X and the parameters of the last fit: "
                f"{advice}fit with warm_start=False"
            )
        return run

    def _train_to_gap(self, trainer: Any, head: Any, examples: Any, lam: float) -> Any:
        """The head, trained to the gap; sets the fitted attributes, and warns where the gap is larger."""
        self.history_: list[dict[str, float]] = []
        tolerance = Relative(float(self.tol))
        C = getattr(self, "_own_C", None)
        C = None if isinstance(C, str) else C  # "guess" and "choose"
        before = trainer.dual.passes
        if not before and not trainer.damps:
            warn_if_stiff(head, trainer.dual, fetcher(examples), self.max_passes, ConvergenceWarning)
        certificate = trainer.solve(
            tolerance, max_passes=before + self.max_passes, on_check=self._note, progress=bool(self.verbose)
        )
        self.certificate_, self.n_passes_ = certificate, certificate.passes
        trained = head.head if isinstance(head, WeightedHead) else head
        if self._goes_on:  # a later fit trains the head of the run, and may raise before its certificate
            trained = copy.deepcopy(trained)
        self.head_, self.structure_ = trained, trained.structure
        self.__dict__.pop("temperature_", None)  # of the model before
        if is_within(certificate.gap, tolerance, certificate.primal):
            warn_if_zero(certificate, trainer.dual, head, examples, C)
        else:
            small = advice_if_small(lam, trainer.dual, head, examples, C)
            warn(
                f"the run ended at max_passes={self.max_passes:g} with a gap{certificate.kind} of "
                f"{100 * certificate.relative_gap:.3g} % of the objective, and tol={self.tol:g} asks for "
                f"{100 * self.tol:g} %: give more passes, features of similar and moderate size (StandardScaler), or a "
                f"smaller C (a larger lam){small}",
                ConvergenceWarning,
            )
        return trained

    def _note(self, certificate: Certificate) -> None:
        names = ("passes", "primal", "dual", "gap", "exact", "seconds")
        self.history_.append({name: float(getattr(certificate, name)) for name in names})

    def __getstate__(self) -> dict[str, Any]:
        """The state without the run: a copy of a fitted estimator predicts, and its next fit begins anew."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_RUN}


@dataclass(eq=False, repr=False)
class StructuredEstimator(NamedWeights, CertifiedEstimator):
    """A certified estimator of labels.

    With ``C`` in the place of ``lam``, ``1/2 |w|^2 + C sum_i t_i max_y [...]`` is minimised, so ``lam = 1 / (C n)``.
    """

    C: float | str | None = None
    _: KW_ONLY
    lam: float | None = None
    tol: float = 0.01
    max_passes: float = 1000.0
    random_state: Any = None
    verbose: bool = False
    warm_start: bool = False
    _C: ClassVar[Any] = 1.0  # what C is unless it or lam is given

    def _check_parameters(self) -> None:
        if self.lam is not None and self.C is not None:
            raise ValueError(f"C={self.C} and lam={self.lam}: give one of them, as lam is 1 / (C n)")
        name, value = ("C", self._own_C) if self.lam is None else ("lam", self.lam)
        check_number(value, name, above=0.0)
        self._check_run()

    @property
    def _own_C(self) -> Any:
        """C, which has a default; None where lam is given."""
        return self._C if self.C is None and self.lam is None else self.C

    def _add(self, X: Any, y: Any, fit: Callable[[Any, Any, int], Any]) -> Any:
        """Append X and y to the examples of earlier calls and call ``fit`` with all of them.

        The third argument of ``fit`` is the number of leading examples that the last run was trained on.
        """
        before = self._data
        if before is None and hasattr(self, "head_"):
            raise ValueError("partial_fit has no earlier examples in a copy or after sample_weight: give all to fit")
        check_counts(range(new := size_of(X)), y)
        stay = 0 if before is None or self._run is None else size_of(before[0])
        # Copies: callers may overwrite their arrays.
        self._data = (_copied(X), _copied(y)) if before is None else (_joined(before[0], X), _joined(before[1], y))
        self._adds = True
        with naming(torch.arange(new - size_of(self._data[0]), new)):  # errors count from the first of this call
            return fit(self._data[0], self._data[1], stay)

    def _lam(self, weight: float) -> float:
        """Lambda for examples whose weights sum to ``weight``."""
        return 1.0 / (self._own_C * weight) if self.lam is None else float(self.lam)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained model, its labels, its vocabulary and its temperature, once calibrated, to one file.

        :func:`torchssvm.deployment.load_model` reads it where neither scikit-learn nor the training data are; sets of
        labels and graphs, which are not decoded in plain torch operators, are read by
        :func:`torchssvm.deployment.load_head`.

        Args:
            path: The file; an existing one is replaced.

        Raises:
            NotFittedError: ``fit`` was not called.
            ImportError: safetensors is missing.
            ValueError: UTF-8 cannot encode the name of a label or of a feature.
        """
        save_model(path, **self._model()._asdict())

    def _model(self) -> SavedModel:
        """What :meth:`save` writes."""
        check_is_fitted(self)
        names = getattr(self, "_names", None) or getattr(self, "classes_", None)  # rankings have none
        labels = None if names is None else list(map(str, names))
        vocabulary = getattr(self, "vocabulary_", None)
        return SavedModel(self.head_, self.head_.structure, labels, vocabulary, **self._saved())

    def _saved(self) -> dict[str, Any]:
        columns = getattr(self, "feature_names_in_", None)
        return {
            "temperature": getattr(self, "temperature_", None),
            "feature_names": None if columns is None else columns.tolist(),
        }


class MatrixClassifier(ClassifierMixin, StructuredEstimator):
    """A structured estimator of the rows of a matrix, dense or sparse."""

    _named: Any = None  # classes of the first partial_fit

    def _matrix(self, X: Any) -> Any:
        check_matrix(X)
        return validate_data(self, X, reset=False, **MATRIX)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose whole output is right, as scikit-learn's accuracy; ValueError for a class of -100.

        Of label sets, a row counts where all its labels are right (exact match): one wrong label makes it wrong.
        ``sample_weight`` as in ``fit``.
        """
        check_missing(y)
        columns_of([y], getattr(self, "_names", None), "y")
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _or_as_before(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of an estimator so that its attributes stay as they were if it raises."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            with naming(None):  # until rows are left out
                return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return call


def _form(head: Any) -> dict[str, torch.dtype]:
    return {name: weight.dtype for name, weight in head.named_parameters()}


def _copied(given: Any) -> Any:
    if isinstance(given, list):
        return [_copied(one) if hasattr(one, "__array__") or sparse.issparse(one) else one for one in given]
    return given.copy() if hasattr(given, "copy") else given


def _joined(before: Any, more: Any) -> Any:
    """Concatenate lists, arrays or sparse matrices; the second is copied."""
    if isinstance(before, list):
        return [*before, *_copied(list(more))]
    if sparse.issparse(before) or sparse.issparse(more):
        return sparse.vstack([before, more], format="csr")
    return np.concatenate([np.asarray(before), np.asarray(more)])


def _digests(examples: Any) -> torch.Tensor:
    """A digest of the features and the target of each example, ``[n]`` int64; padding does not count."""
    digests = torch.zeros(len(examples), dtype=torch.int64)
    for batch in in_order(examples):
        features = [
            t if t.is_floating_point() or t.dtype is torch.bool else t.long() + 1  # -1 is padding
            for t in tree_tensors(batch.x)
        ]
        digests[batch.index] = digest_targets([*features, *tree_tensors(batch.y)], batch.lengths)
    return digests


def _places(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """The place of each digest of ``now`` in ``before``, -1 where it has none."""
    ordered, places = before.sort(stable=True)
    at = torch.searchsorted(ordered, now).clamp(max=len(before) - 1)
    return torch.where(ordered[at] == now, places[at], -1)


class once_calibrated:  # a decorator
    """A method that only a calibrated estimator has: before ``calibrate``, AttributeError says what to do."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        update_wrapper(self, method)  # type: ignore[arg-type]  # it copies name and docstring

    def __get__(self, estimator: Any, kind: Any = None) -> Any:
        if estimator is None:
            return self.method
        if not hasattr(estimator, "temperature_"):
            raise AttributeError(f"{self.method.__name__}(X) needs calibrate(X, y), on examples that fit has not seen")
        return MethodType(self.method, estimator)


class CalibratedEstimator(StructuredEstimator):
    """An estimator with probabilities; it has ``temperature_`` once it is calibrated."""

    temperature_: float

    def _fit_temperature(self, structure: Any, examples: Iterable[tuple[Potentials, Any]]) -> Any:
        self.temperature_ = fit_temperature(structure, examples)
        return self

    def _check_known(self, labels: np.ndarray) -> None:
        if len(new := labels[~np.isin(labels, self.classes_)].tolist()):
            raise ValueError(f"y has the label {new[0]!r}, which is not in classes_: leave it out")


class SequenceEstimator(CalibratedEstimator):
    """An estimator of a label for each token or frame of sequences."""

    vocabulary_: Any = None
    _kind: str
    _encoded: Any = None  # kind, lengths, rows and states of the last fit, while the estimator may go on

    def _states(self, y: Any, lengths: list[int]) -> list[np.ndarray]:
        """The target of every sequence; ValueError for labels that are not in ``classes_``."""
        raise NotImplementedError

    def _check_kind(self, X: Any) -> None:
        if (kind := kind_of(X)) != self._kind:
            raise ValueError(f"X holds {kind}: give {self._kind}")

    def calibrate(self, X: Any, y: Any) -> Any:
        """Fit one temperature to sequences that ``fit`` has not seen, for :meth:`predict_proba`.

        It is the T that makes their labels most probable, ``P(y) = exp(score(y) / T) / Z``: without it, scores of max
        margin are no log probabilities. Predictions stay as they are; another ``fit`` forgets it.

        Args:
            X: As in :meth:`fit`, no sequence empty.
            y: As in :meth:`fit`, with labels of ``classes_``.

        Raises:
            ValueError: X and y do not fit, or a label is not in ``classes_``.
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
    def predict_proba(self, X: Any) -> PerExample:
        """The probability of each label of each token, or frame, summed over all outputs, by :meth:`calibrate`.

        Returns:
            ``[N_i, K]`` float64 for every sequence.
        """

        def masses(potentials: Potentials) -> torch.Tensor:
            return marginals_at(self.structure_, potentials, self.temperature_).parts["emission"]

        return self._of_labels(X, masses)

    def decision_function(self, X: Any) -> PerExample:
        """The margin of each label of each token, or frame, ``[N_i, K]`` float64 for every sequence.

        It is the best score of an output with the label less the best score without: at least 0 for predicted labels
        and at most 0 for others. Its size says how sure the model is.
        """
        check_is_fitted(self)
        return self._of_labels(X, self.structure_.max_marginals)

    def _of_labels(self, X: Any, by_label: Callable[[Potentials], torch.Tensor]) -> PerExample:
        """``[N_i, K]`` for every sequence; ``by_label`` gives ``[B, N, at least K]`` for a batch."""
        states = len(self.classes_)
        return self._by_sequence(X, np.zeros((0, states)), lambda potentials: by_label(potentials)[..., :states])

    def _by_sequence(self, X: Any, nothing: np.ndarray, rows: Callable[[Potentials], torch.Tensor]) -> PerExample:
        """Apply ``rows`` to the potentials of each sequence, one row a token; ``nothing`` for an empty sequence."""
        X = listed(X)
        check_list(X)
        outputs = PerExample(nothing.copy() for _ in X)
        for index, length, potentials in self._scored(X):
            for i, size, row in zip(index, length, rows(potentials).numpy(), strict=True):
                outputs[i] = row[:size].copy()
        return outputs

    def _scored(self, X: Any) -> Any:
        """The places, the lengths and the potentials of the sequences that are not empty, in batches."""
        check_is_fitted(self)
        full = np.array([i for i, sequence in enumerate(X) if not hasattr(sequence, "__len__") or size_of(sequence)])
        if not len(full):
            return
        sequences = [X[place] for place in full]
        with naming(torch.from_numpy(full)):
            self._check_kind(sequences)
            self._check_names(sequences)
            if self._kind == NAMED:
                features: Any = FeatureLists(sequences, self.vocabulary_ or {}).tokens
            else:
                features = batches_of(rows_of(sequences, self.n_features_in_))
        lengths = np.array([size_of(sequence) for sequence in sequences])
        for chosen in rows_in_order(range(len(full)), 256, lengths):
            places = np.array(chosen)
            length, index = lengths[places], full[places]
            with torch.no_grad():  # not around the yield: where the caller raises, it would stay
                potentials = self.head_(features(places), torch.from_numpy(length))
            potentials.index = torch.from_numpy(index)
            yield index.tolist(), length.tolist(), potentials
