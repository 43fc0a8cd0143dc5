"""Sums over label sets: multipliers, scores, the weights of duals.

Names and signs are those of ``label_set_pass``.
"""

from __future__ import annotations

from torchssvm.core.jit import njit
from torchssvm.solvers.gdmm.chain_pass import add_row


@njit
def update_multipliers(q, factors, step, totals):
    """``multiplier += step e``; totals as in ``chain_pass``."""
    states = q.shape[1]
    for i in range(len(q)):
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            for s in range(2):
                label = factors.key[f] // states if s == 0 else factors.key[f] % states
                excess = factors.mass[f, 0] + factors.mass[f, 1 + s] - q[i, label]
                factors.multiplier[f, s] += step * excess
                totals[0] += excess * excess
                totals[1] += abs(excess)
                totals[2] = max(totals[2], abs(excess))
                totals[3] += q[i, label] * q[i, label]
                totals[4] += factors.multiplier[f, s] * factors.multiplier[f, s]


@njit
def sum_features(sets, q, scale, total):
    """``total += (1/(lam n)) sum_i x_i (y_i - q_i)^T``; returns ``sum_i <delta_i, q_i>`` with its constants."""
    loss = 0.0
    states = q.shape[1]
    for i in range(len(q)):
        for k in range(states):
            gap = (1.0 if sets.y[i, k] else 0.0) - q[i, k]
            if gap != 0.0:
                loss += sets.cost[k] * abs(gap)
                for p in range(sets.row[i], sets.row[i + 1]):
                    total[sets.column[p], k] += sets.value[p] * (gap / scale)
    return loss


@njit
def score_sets(begin, end, sets, weights, out):
    """Scores of the labels of examples ``begin`` to ``end - 1``, ``[end - begin, K]``."""
    for i in range(begin, end):
        out[i - begin, :] = 0.0
        for p in range(sets.row[i], sets.row[i + 1]):
            add_row(out[i - begin], weights[sets.column[p]], sets.value[p])


@njit
def sum_factors(sets, q, factors, scale, total):
    """``total += (1/(lam n)) sum_i (y y^T - both)`` over the pairs i < j: the weights that the factors stand for."""
    states = q.shape[1]
    for i in range(len(q)):
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            a, b = factors.key[f] // states, factors.key[f] % states
            target = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
            total[a, b] += (target - factors.mass[f, 0]) / scale


@njit
def sum_consistent(i, sets, q, factors, labels, both, share, total):
    """``total += share (y y^T - both)`` for one example, with ``both`` the nearest mass consistent with q.

    The nearest mass to that of a made factor, else to the target's, within the Frechet bounds ``max(0, q_i + q_j - 1)``
    and ``min(q_i, q_j)``, the only constraints of the local polytope. ``labels`` ``[K]`` int64 and ``both`` ``[K, K]``,
    -1 before and after, are scratch; ``share`` is ``1 / (lam n)``.
    """
    states, many = q.shape[1], 0
    for k in range(states):
        if q[i, k] > 0.0 or sets.y[i, k]:
            labels[many] = k
            many += 1
    for f in range(factors.start[i], factors.start[i] + factors.size[i]):
        both[factors.key[f] // states, factors.key[f] % states] = factors.mass[f, 0]
    for c in range(many):
        for d in range(c + 1, many):
            a, b = labels[c], labels[d]
            target = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
            mass = both[a, b] if both[a, b] >= 0.0 else target
            mass = min(max(mass, q[i, a] + q[i, b] - 1.0, 0.0), q[i, a], q[i, b])
            total[a, b] += share * (target - mass)
    for f in range(factors.start[i], factors.start[i] + factors.size[i]):
        both[factors.key[f] // states, factors.key[f] % states] = -1.0


@njit
def sum_all_consistent(sets, q, factors, labels, both, share, total):
    """:func:`sum_consistent` for all examples."""
    for i in range(len(q)):
        sum_consistent(i, sets, q, factors, labels, both, share, total)


@njit
def sum_gains(pairs):
    """Recompute ``pairs.gain``."""
    for k in range(len(pairs.gain)):
        total = 0.0
        for j in range(len(pairs.gain)):
            total += max(pairs.value[k, j], 0.0)
        pairs.gain[k] = total
