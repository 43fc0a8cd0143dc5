"""Sum-product on a batch of chains: log-partition and marginals, by Triton on CUDA, else in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.launch import compiles
from torchssvm.core.triton_support import triton_available


@torch.no_grad()
def sum_product(emission: Tensor, transition: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals of ``P(y) = exp(score(y)) / Z`` for each chain, with the score that ``viterbi`` maximises.

    A forward pass in the log domain is followed by a backward pass that multiplies normalised conditionals
    ``P(y_t | y_{t+1})``. For potentials of any size the marginals of neighbours agree and each sums to 1, up to the
    rounding of numbers in [0, 1]. On CUDA Triton does so up to 128 states, 64 in float64; all else is torch operations.

    Args:
        emission: ``[B, N, K]``, float32 or float64; ``-inf`` where a state is impossible, like the transitions.
        transition: ``[K, K]`` (previous, next) shared by all, ``[B, K, K]`` for each chain, or ``[B, N-1, K, K]``.
        lengths: ``[B]`` int64, 1 to N; None means N for all.

    Returns:
        ``states`` ``[B, N, K]``, the probability of each state, zero beyond the length; ``pairs``, the probabilities of
        neighbouring states, ``[B, N-1, K, K]`` if transitions depend on the position, otherwise summed over the
        positions, ``[B, K, K]``; and ``log_partition`` ``[B]`` float64, ``log Z``.
    """
    batch, longest, _ = emission.shape
    if emission.is_cuda and not torch.compiler.is_compiling() and compiles(emission, transition) and triton_available():
        from torchssvm.structures.chain.sum_product_triton import fits, sum_product_triton

        if fits(emission):
            return sum_product_triton(emission, transition, lengths)
    if lengths is None:
        return _longest_first(emission, transition, [batch] * longest)
    # With the longest chains first, the chains that have a position t are a prefix of the batch.
    lengths, order = lengths.sort(descending=True, stable=True)
    running = (lengths > torch.arange(longest, device=lengths.device).unsqueeze(1)).sum(1).tolist()
    sorted_transition = transition if transition.ndim == 2 else transition[order]
    marginals, pairs, log_partition = _longest_first(emission[order], sorted_transition, running)
    original = torch.empty_like(order)
    original[order] = torch.arange(batch, device=order.device)
    return marginals[original], pairs[original], log_partition[original]


def _longest_first(emission: Tensor, transition: Tensor, running: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Sum-product on chains in descending order of length; the first ``running[t]`` have a position t."""
    batch, longest, states = emission.shape
    prefix, shifts = _centred(emission[:, 0])
    prefixes = [prefix]  # at t: [running, K], log of the total mass of prefixes that end in each state, less the shifts
    for t in range(1, longest):
        size = running[t]
        if not size:
            break
        joint = prefix[:size].unsqueeze(2) + _pairs_at(transition, t - 1, size)
        prefix, shift = _centred(joint.logsumexp(1) + emission[:size, t])
        prefixes.append(prefix)
        shifts[:size] += shift
    log_partition = torch.empty_like(shifts)
    marginals = emission.new_zeros(emission.shape)
    shape = (batch, longest - 1, states, states) if transition.ndim == 4 else (batch, states, states)
    pairs = emission.new_zeros(shape)
    following = emission.new_zeros(0, states)
    for t in range(len(prefixes) - 1, -1, -1):
        prefix, size = prefixes[t], len(following)
        joint = prefix[:size].unsqueeze(2) + _pairs_at(transition, t, size)
        both = joint.softmax(1).mul_(following.unsqueeze(1))  # P(y_t | y_{t+1}) P(y_{t+1})
        # A state that no other may precede has a softmax of NaN, and probability 0.
        both = both.masked_fill_((following == 0).unsqueeze(1), 0.0)
        if transition.ndim == 4:
            pairs[:size, t : t + 1] = both.unsqueeze(1)
        else:
            pairs[:size] += both
        ending = prefix[size:]  # chains whose last position is t
        log_partition[size : len(prefix)] = ending.to(torch.float64).logsumexp(1)
        following = torch.cat([both.sum(2), ending.softmax(1)])
        marginals[: len(prefix), t] = following
    return marginals, pairs, log_partition + shifts


def _centred(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Scores ``[R, K]`` less their maximum, and the maximum ``[R]`` float64, so that long chains lose no digits.

    Where all are ``-inf``, 0 is in its place.
    """
    highest = scores.amax(1, keepdim=True)
    highest = highest.masked_fill(highest == -torch.inf, 0.0)
    return scores - highest, highest.squeeze(1).to(torch.float64)


def _pairs_at(transition: Tensor, t: int, size: int) -> Tensor:
    """Transitions between positions t and t + 1 of the first ``size`` chains; broadcasts to ``[size, K, K]``."""
    if transition.ndim == 2:
        return transition
    if transition.ndim == 3:
        return transition[:size]
    return transition[:size, t] if size else transition.new_zeros(0, *transition.shape[2:])
