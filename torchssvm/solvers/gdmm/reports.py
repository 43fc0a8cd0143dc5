"""GDMM's report of a pass, and its certificate."""

from __future__ import annotations

from dataclasses import dataclass

from torchssvm.solvers.certificate import Certificate


@dataclass(frozen=True)
class FactorwiseCertificate(Certificate):
    """Bounds of the problem P and of its relaxation P' at GDMM's weights, and the disagreement of the factors.

    P has maxima over outputs: ``dual <= min P <= primal``. GDMM minimises the relaxation P', with maxima over the local
    polytope: ``relaxed_dual <= min P' <= relaxed_primal``. P' is at least P everywhere, so ``primal <=
    relaxed_primal``, but ``relaxed_dual`` bounds min P' only, and may be above min P. On chains the local polytope is
    the hull of the outputs, and P' is P. All bounds hold for any violation.

    GDMM brings ``relaxed_gap`` to 0, and stops on it. On label sets ``gap`` may stay positive:
    :meth:`torchssvm.GDMM.dual_state` lets BCFW continue on P.

    ``primal`` belongs to the head's weights; it is an upper bound unless every example was decoded exactly (``exact``).
    ``dual`` is the largest dual objective of the means of outputs in all certificates so far, ``relaxed_dual`` the
    largest of their points of the local polytope. ``passes`` counts GDMM's passes, ``oracle_calls`` the decodings of
    certificates, as nothing else decodes.

    Attributes:
        relaxed_primal: An upper bound of ``P'(w)``, at the same weights.
        relaxed_dual: A lower bound of min P'.
        relaxed_gap: ``relaxed_primal - relaxed_dual``.
        has_relaxation: Whether the local polytope is larger than the hull of the outputs, as on label sets. Otherwise
            the bounds of the relaxation equal the problem's.
        violation: Mean total variation ``1/2 |M pi_f - pi_j|_1`` over all pairs of a factor and its variable; 0 to 1.
        worst_violation: The largest total variation.

    Example:
        >>> certificate = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1).solve(tolerance=0.05)
        >>> certificate.dual <= certificate.primal <= certificate.relaxed_primal
        True
    """

    relaxed_primal: float
    relaxed_dual: float
    relaxed_gap: float
    has_relaxation: bool
    violation: float
    worst_violation: float

    @property
    def gaps(self) -> str:
        """The gap of the problem, and of its relaxation if it has one."""
        relaxation = f", relaxed gap {self.relaxed_gap:.6g}" if self.has_relaxation else ""
        return super().gaps + relaxation

    def __str__(self) -> str:
        relaxation = (
            f"; of the relaxation: primal {self.relaxed_primal:.6g}, dual {self.relaxed_dual:.6g}, "
            f"gap {self.relaxed_gap:.6g} ({100 * self.relative_relaxed_gap:.3g} % of its primal)"
        )
        return (
            f"{self.bounds}{relaxation if self.has_relaxation else ''}; violation {self.violation:.2g} "
            f"after {self.passes:.0f} passes"
        )

    @property
    def relative_relaxed_gap(self) -> float:
        """``relaxed_gap / relaxed_primal``."""
        return self.relaxed_gap / self.relaxed_primal if self.relaxed_primal > 0.0 else 0.0


@dataclass(frozen=True)
class PassReport:
    """One pass of GDMM.

    Attributes:
        passes: Passes made, this one included.
        violation: As in :class:`FactorwiseCertificate`.
        worst_violation: The largest total variation.
        rho: Penalty of this pass, times n.
        visited: Entries that the factorwise oracle of higher-order factors looked at.
        queries: Calls of the factorwise oracle.
        seconds: Duration.

    Example:
        >>> trainer = GDMM(LinearChain(4, 3), in_order(chains), num_examples=20, lam=0.1)
        >>> report = trainer.step()
        >>> report.passes, report.violation >= 0
        (1, True)
    """

    passes: int
    violation: float
    worst_violation: float
    rho: float
    visited: int
    queries: int
    seconds: float

    def __str__(self) -> str:
        return f"pass {self.passes}: violation {self.violation:.2g}, rho {self.rho:.3g}, {self.seconds:.2f} s"
