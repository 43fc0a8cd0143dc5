"""Scores of sets of labels: Hamming loss, exact matches, micro and macro F1."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchssvm.core.arguments import check_tensor


@dataclass(frozen=True)
class MultilabelScores:
    """Counts of labels, and scores from them; the F1 of no true and no predicted labels is 0.

    Counts of several batches add up: ``a + b``.

    Attributes:
        correct: int64 ``[K]``, number of examples with the label whose prediction has it too.
        predicted: int64 ``[K]``, number of examples whose prediction has the label.
        true: int64 ``[K]``, number of examples with the label.
        exact: Number of examples whose labels are all right.
        examples: n.

    Example:
        >>> scores = multilabel_scores(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))
        >>> scores.precision, round(scores.recall, 3), scores.exact_match
        (1.0, 0.667, 0.5)
    """

    correct: Tensor
    predicted: Tensor
    true: Tensor
    exact: int
    examples: int

    @property
    def wrong(self) -> Tensor:
        """int64 ``[K]``, examples for which the label is wrong."""
        return self.predicted + self.true - 2 * self.correct

    @property
    def hamming_loss(self) -> float:
        """Share of the n K decisions that are wrong."""
        return int(self.wrong.sum()) / (self.examples * len(self.true))

    @property
    def label_accuracy(self) -> Tensor:
        """float64 ``[K]``, share of the examples for which the label is right."""
        return 1.0 - self.wrong.double() / self.examples

    @property
    def accuracy(self) -> float:
        """The mean of :attr:`label_accuracy`: 1 - Hamming loss, the test accuracy of [Y16]."""
        return 1.0 - self.hamming_loss

    @property
    def exact_match(self) -> float:
        """Share of the examples whose labels are all right."""
        return self.exact / self.examples

    @property
    def precision(self) -> float:
        """Precision: share of the predicted labels that are true; 0 if none is predicted."""
        return int(self.correct.sum()) / max(int(self.predicted.sum()), 1)

    @property
    def recall(self) -> float:
        """Recall: share of the true labels that are predicted; 0 if there is none."""
        return int(self.correct.sum()) / max(int(self.true.sum()), 1)

    @property
    def micro_f1(self) -> float:
        """F1 of all decisions together."""
        return 2 * int(self.correct.sum()) / max(int((self.predicted + self.true).sum()), 1)

    @property
    def label_f1(self) -> Tensor:
        """float64 ``[K]``, F1 of each label."""
        return 2 * self.correct.double() / (self.predicted + self.true).clamp(min=1)

    @property
    def macro_f1(self) -> float:
        """The mean of :attr:`label_f1`, including labels that do not occur."""
        return float(self.label_f1.mean())

    def __add__(self, other: MultilabelScores) -> MultilabelScores:
        if len(self.true) != len(other.true):
            raise ValueError(f"scores of {len(self.true)} and of {len(other.true)} labels cannot be added")
        return MultilabelScores(
            self.correct + other.correct,
            self.predicted + other.predicted,
            self.true + other.true,
            self.exact + other.exact,
            self.examples + other.examples,
        )

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy:.4f}  Hamming loss {self.hamming_loss:.4f}  exact {self.exact_match:.4f}  "
            f"micro F1 {self.micro_f1:.4f}  macro F1 {self.macro_f1:.4f}"
        )


def multilabel_scores(true: Tensor, predicted: Tensor) -> MultilabelScores:
    """Compare sets of labels.

    Args:
        true: ``[n, K]``, 0 and 1 of any dtype.
        predicted: As ``true``.

    Raises:
        ValueError: The shapes differ, or are not ``[n, K]`` with n, K >= 1, or an entry is not 0 or 1.

    Example:
        >>> scores = multilabel_scores(true=torch.tensor([[1, 0, 1]]), predicted=torch.tensor([[1, 0, 0]]))
        >>> round(scores.micro_f1, 3)
        0.667
    """
    check_tensor(true, "true")
    check_tensor(predicted, "predicted")
    if true.ndim != 2 or not true.numel() or true.shape != predicted.shape:
        shapes = f"{list(true.shape)} and {list(predicted.shape)}"
        raise ValueError(f"true and predicted must be [n, K] both, of at least one example and label, got {shapes}")
    for name, labels in (("true", true), ("predicted", predicted)):
        if bool(((labels != 0) & (labels != 1)).any()):
            raise ValueError(f"{name} must hold 0 and 1; threshold scores first, and leave out what pads a batch")
    wanted, given = true.bool().cpu(), predicted.bool().cpu()
    return MultilabelScores(
        correct=(wanted & given).sum(0),
        predicted=given.sum(0),
        true=wanted.sum(0),
        exact=int((wanted == given).all(1).sum()),
        examples=len(wanted),
    )
