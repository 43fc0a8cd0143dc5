"""What GDMM proves and reports."""

from __future__ import annotations

from dataclasses import dataclass

from torchssvm.certificate import Certificate


@dataclass(frozen=True)
class FactorwiseCertificate(Certificate):
    """A certificate of GDMM's weights, and how far the factors are from agreeing.

    ``primal`` is that of the weights that the head holds, by an exact oracle; where ``exact`` is False it is an upper
    bound, the structured hinges of the LP relaxation. ``dual`` is the largest dual objective of the consistent points
    rounded so far. Both hold however large the violation is. ``passes`` are those of GDMM;
    ``oracle_calls`` counts the decodings of certificates, and nothing else decodes.

    Attributes:
        sweeps: Passes of GDMM.
        violation: Mean total variation ``1/2 |M pi_f - pi_j|_1`` over all pairs of a factor and its variable; 0 to 1.
        worst_violation: The largest.
    """

    sweeps: int
    violation: float
    worst_violation: float

    def __str__(self) -> str:
        kind = "" if self.exact else " (upper bound: relaxed oracle)"
        return (
            f"primal {self.primal:.6f}{kind}, dual {self.dual:.6f}, gap {self.gap:.6f}, violation {self.violation:.2g} "
            f"after {self.sweeps} passes"
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
