"""Three averages of the iterates ([B13] appendix C, equations 14 and 15)."""

from __future__ import annotations

from torchssvm.solvers.running_average import Average


class WeightedAverage(Average):
    """``wbar <- k/(k+2) wbar + 2/(k+2) w`` after step k = 0, 1, ... ([B13] Algorithm 4, last line; equation 14).

    In closed form ``2/(K(K+1)) sum_t t w_t`` over t = 1 .. K: late iterates count more. [B13] recommends this average;
    with BCFW its expected gap is O(1/K) (Theorem C.3).

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> average = WeightedAverage([weight])
        >>> for step in (1.0, 2.0, 3.0):
        ...     weight.data = torch.tensor([step])
        ...     average.update()
        >>> with average.apply():
        ...     print(round(weight.item(), 4))  # (1 * 1 + 2 * 2 + 3 * 3) / 6
        2.3333
    """

    def coefficient(self, k: int) -> float:
        """``2/(k+1)``; the paper counts steps from 0."""
        return 2.0 / (k + 1)


class SuffixAverage(Average):
    """The 0.5-suffix average by doubling: uniform, restarted at each k that is a power of 2 ([B13] equation 15).

    It fluctuates: just before a restart it covers the last half of the iterates, just after only one.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> average = SuffixAverage([weight])
        >>> for step in (1.0, 2.0, 3.0):
        ...     weight.data = torch.tensor([step])
        ...     average.update()
        >>> with average.apply():
        ...     print(weight.item())  # of the steps 2 and 3
        2.5
    """

    def coefficient(self, k: int) -> float:
        """``1/(k - s + 1)`` with s the largest power of 2 up to k."""
        return 1.0 / (k - (1 << (k.bit_length() - 1)) + 1)


class UniformAverage(Average):
    """The plain average of all iterates, ``(1/K) sum_t w_t``: the slowest to forget a bad start.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> average = UniformAverage([weight])
        >>> for step in (1.0, 2.0, 3.0):
        ...     weight.data = torch.tensor([step])
        ...     average.update()
        >>> with average.apply():
        ...     print(weight.item())
        2.0
    """

    def coefficient(self, k: int) -> float:
        """``1/k``."""
        return 1.0 / k
