"""The schedule of alternation: epochs on the features and on the head."""

from __future__ import annotations

from dataclasses import dataclass

from torchssvm.core.arguments import check_flags

_SOLVING = 10  # fewest epochs of the head that solve it well enough for the envelope gradient


@dataclass(frozen=True)
class Alternate:
    """``head`` epochs of BCFW on the head, then ``features`` epochs of the features' optimizer, repeated.

    The head comes first: while its weights are zero, the hinge has no gradient for the features.

    With ``envelope=True`` the features follow the gradient of the head's optimum. At a solved head, that is the
    gradient of ``(1/n) sum_i <mu_i - p(y_i), theta_i>`` with the dual's mean parts mu_i (Danskin's theorem), without
    decoding. It holds for the features that the head was solved on alone, so an epoch of the features is one step of
    their optimizer, with the gradient of all examples and the features in evaluation mode; then the head is solved
    again, by the compiled loop where it applies. A fit has to end with the head. This lowers the certified optimum of
    the training set; it need not be what predicts best: see :class:`JointTraining`.

    Args:
        features: Epochs of each round that train the features; 1 with ``envelope``.
        head: Epochs of each round that train the head; at least 10 with ``envelope``.
        envelope: Whether the features follow the gradient of the optimum, not that of the structured hinge.

    Raises:
        ValueError: A number is not a positive whole number, or does not fit ``envelope``.

    Example:
        >>> network, head = torch.nn.Linear(4, 8), LinearMulticlass(8, 3)
        >>> alternate = Alternate(features=1, head=2)
        >>> model = StructuredSVM(head, lam=0.1, features=network, features_optimizer=torch.optim.Adam, joint=alternate)
        >>> trainer = L.Trainer(max_epochs=5, **quiet)
        >>> trainer.fit(model, loader)
        >>> trainer.current_epoch
        5
    """

    features: int = 1
    head: int = 4
    envelope: bool = False

    def __post_init__(self) -> None:
        for name in ("features", "head"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a positive number of epochs")
        check_flags(envelope=self.envelope)
        if self.envelope and self.features != 1:
            raise ValueError(
                f"features={self.features} must be 1 with envelope=True: the gradient is that of a solved head, and "
                "after one step of the features the head is no longer solved"
            )
        if self.envelope and self.head < _SOLVING:
            raise ValueError(
                f"head={self.head} must be at least {_SOLVING} with envelope=True, whose gradient is that of a solved "
                "head"
            )

    def trains_features(self, epoch: int) -> bool:
        """Whether epoch number ``epoch``, counted from 0, trains the features."""
        return epoch % (self.head + self.features) >= self.head

    def check_end(self, max_epochs: int | None) -> None:
        """Raise ValueError if a fit of so many epochs does not end with a solved head; None or -1 is no limit."""
        if not self.envelope or max_epochs is None or max_epochs < 0:
            return
        rounds, left = divmod(max_epochs, self.head + self.features)
        if left != self.head:
            fits = max(rounds, left > self.head) * (self.head + self.features) + self.head
            raise ValueError(
                f"Trainer(max_epochs={max_epochs}) does not end with a solved head: {self} ends with one after "
                f"k * {self.head + self.features} + {self.head} epochs, such as {fits}"
            )
