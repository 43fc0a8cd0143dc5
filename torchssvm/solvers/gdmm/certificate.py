"""What GDMM proves and reports."""

from __future__ import annotations

from dataclasses import dataclass

from torchssvm.solvers.certificate import Certificate


@dataclass(frozen=True)
class FactorwiseCertificate(Certificate):
    """A certificate of GDMM's weights for two problems, and how far the factors are from agreeing.

    The problem itself has its maxima over outputs: ``dual <= min P <= primal`` are bounds of its optimum. GDMM
    minimises its relaxation P', whose maxima are over the local polytope: ``relaxed_dual <= min P' <= relaxed_primal``.
    P' is at least P everywhere, so that ``primal <= relaxed_primal``; the dual of the relaxation, though, bounds min P'
    only, and may be above min P. On chains the local polytope is the hull of the outputs, and both problems are one.
    Everything holds however large the violation is.

    It is ``relaxed_gap`` that passes bring to 0, and that GDMM stops on. On label sets ``gap`` need not get there:
    :meth:`torchssvm.GDMM.dual_state` lets BCFW go on with the problem itself.

    ``primal`` is that of the weights that the head holds; ``exact`` says whether every example was decoded exactly, and
    otherwise it is an upper bound. ``dual`` is the largest dual objective of all means of outputs that certificates
    have made, ``relaxed_dual`` that of all points of the local polytope. ``passes`` are those of GDMM; ``oracle_calls``
    counts the decodings of certificates, and nothing else decodes.

    Attributes:
        relaxed_primal: An upper bound of ``P'(w)``, at the same weights.
        relaxed_dual: A lower bound of min P'.
        relaxed_gap: ``relaxed_primal - relaxed_dual``.
        has_relaxation: Whether the local polytope is larger than the hull of the outputs: on label sets. Elsewhere the
            three numbers of the relaxation are those of the problem itself.
        sweeps: Passes of GDMM.
        violation: Mean total variation ``1/2 |M pi_f - pi_j|_1`` over all pairs of a factor and its variable; 0 to 1.
        worst_violation: The largest.
    """

    relaxed_primal: float
    relaxed_dual: float
    relaxed_gap: float
    has_relaxation: bool
    sweeps: int
    violation: float
    worst_violation: float

    def __str__(self) -> str:
        kind = "" if self.exact else " (upper bound: approximate oracle)"
        relaxation = (
            f"; relaxed to the local polytope: primal {self.relaxed_primal:.6f}, dual {self.relaxed_dual:.6f}, "
            f"gap {self.relaxed_gap:.6f}"
        )
        return (
            f"primal {self.primal:.6f}{kind}, dual {self.dual:.6f}, gap {self.gap:.6f}"
            f"{relaxation if self.has_relaxation else ''}; violation {self.violation:.2g} after {self.sweeps} passes"
        )


@dataclass(frozen=True)
class PassReport:
    """One pass of GDMM.

    Attributes:
        sweeps: Passes made, this one included.
        violation: As in :class:`FactorwiseCertificate`.
        worst_violation: The largest.
        rho: Penalty of this pass, times n.
        visited: Entries that the factorwise oracle of higher-order factors looked at.
        queries: How often it was asked.
        seconds: Duration.
    """

    sweeps: int
    violation: float
    worst_violation: float
    rho: float
    visited: int
    queries: int
    seconds: float

    def __str__(self) -> str:
        return f"pass {self.sweeps}: violation {self.violation:.2g}, rho {self.rho:.3g}, {self.seconds:.2f} s"
