"""A yardstick: plain BCFW with gap sampling on the OCR chain, one example at a time, compiled by Numba.

It shares no code with the library and does one thing only, so that a time measured on a noisy machine can be read as a
ratio: the part ``solvers`` of ``run.py`` runs this and the library in turn, and divides.

    python benchmarks/ocr_reference.py --size large --lam 1e-3 --gaps 0.05 0.01

Prints one JSON line per gap threshold: seconds (gap passes included), passes, primal, dual, gap. Single thread.
Model: 128*26 emission + 26*26 transition + 3*26 bias (all, first, last) = 4082 weights; Hamming loss / word length.
"""

import argparse
import json
import time
from pathlib import Path

import numba as nb
import numpy as np

K, F = 26, 131
DATA = Path(__file__).parents[1] / "datasets" / "src" / "ocr" / "ocr_letters.npz"


@nb.njit(fastmath=True, cache=True)
def sweep(order, X, Y, off, W, Tr, MU, MT, ell, gaps, lam, update):
    """BCFW steps on the examples of `order`, or, with update=False, their exact block gaps at (W, Tr)."""
    n = off.shape[0] - 1
    longest = 0
    for i in range(n):
        longest = max(longest, off[i + 1] - off[i])
    th = np.empty((longest, K), np.float32)
    V = np.empty((longest, K), np.float32)
    back = np.empty((longest, K), np.int64)
    ys = np.empty(longest, np.int64)
    du = np.empty((longest, K), np.float32)
    dT = np.empty((K, K), np.float32)
    dW = np.empty((F, K), np.float32)
    for o in range(order.shape[0]):
        i = order[o]
        a, T = off[i], off[i + 1] - off[i]
        aug = np.float32(1.0 / T)
        for t in range(T):  # potentials
            th[t] = 0
            for j in range(F):
                v = X[a + t, j]
                if v != 0:
                    for k in range(K):
                        th[t, k] += v * W[j, k]
        for k in range(K):  # loss-augmented Viterbi
            V[0, k] = th[0, k] + (aug if k != Y[a] else np.float32(0))
        for t in range(1, T):
            V[t] = -np.float32(1e30)
            for j in range(K):
                v = V[t - 1, j]
                for k in range(K):
                    s = v + Tr[j, k]
                    if s > V[t, k]:
                        V[t, k] = s
                        back[t, k] = j
            for k in range(K):
                V[t, k] += th[t, k] + (aug if k != Y[a + t] else np.float32(0))
        best = 0
        for k in range(1, K):
            if V[T - 1, k] > V[T - 1, best]:
                best = k
        ys[T - 1] = best
        for t in range(T - 1, 0, -1):
            ys[t - 1] = back[t, ys[t]]
        s = 0.0  # <mu_i, theta_i>
        for t in range(T):
            for k in range(K):
                du[t, k] = -MU[a + t, k]
                s += MU[a + t, k] * th[t, k]
        for j in range(K):
            for k in range(K):
                dT[j, k] = -MT[i, j, k]
                s += MT[i, j, k] * Tr[j, k]
        g = (V[T - 1, best] - s) / n - ell[i]
        gaps[i] = g
        if not update:
            continue
        loss = 0.0
        for t in range(T):
            du[t, ys[t]] += 1
            loss += (ys[t] != Y[a + t]) / T
            if t > 0:
                dT[ys[t - 1], ys[t]] += 1
        dW[:] = 0  # adjoint of the head, and its norm
        for t in range(T):
            for j in range(F):
                v = X[a + t, j]
                if v != 0:
                    for k in range(K):
                        dW[j, k] += v * du[t, k]
        norm = 0.0
        for j in range(F):
            for k in range(K):
                norm += dW[j, k] * dW[j, k]
        for j in range(K):
            for k in range(K):
                norm += dT[j, k] * dT[j, k]
        if norm <= 0:
            continue
        gamma = min(max(g * lam * n * n / norm, 0.0), 1.0)
        c, gf = np.float32(gamma / (lam * n)), np.float32(gamma)
        for j in range(F):
            for k in range(K):
                W[j, k] -= c * dW[j, k]
        for j in range(K):
            for k in range(K):
                Tr[j, k] -= c * dT[j, k]
                MT[i, j, k] += gf * dT[j, k]
        for t in range(T):
            for k in range(K):
                MU[a + t, k] += gf * du[t, k]
        ell[i] += gamma * (loss / n - ell[i])


def load(path, size):
    """Features [letters, 131], labels [letters], and where each training word begins [words + 1]."""
    z = np.load(path)
    off, folds = z["offsets"].astype(np.int64), z["folds"]
    keep = np.flatnonzero((folds != 0) if size == "large" else (folds == 0))
    tokens = np.concatenate([np.arange(off[i], off[i + 1]) for i in keep])
    X = np.zeros((len(tokens), F), np.float32)
    X[:, :128] = np.unpackbits(z["pixels"], axis=1)[tokens]
    lengths = (off[1:] - off[:-1])[keep]
    new = np.concatenate([[0], np.cumsum(lengths)])
    X[:, 128] = 1
    X[new[:-1], 129] = 1
    X[new[1:] - 1, 130] = 1
    return X, z["labels"].astype(np.int64)[tokens], new


def main():
    """Train to each gap and print what it took."""
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=DATA)
    p.add_argument("--size", choices=("small", "large"), default="large")
    p.add_argument("--lam", type=float, default=1e-3)
    p.add_argument("--gaps", type=float, nargs="+", default=[0.05, 0.01])
    p.add_argument("--max-seconds", type=float, default=300)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    X, Y, off = load(a.data, a.size)
    n = len(off) - 1
    W, Tr = np.zeros((F, K), np.float32), np.zeros((K, K), np.float32)
    MU = np.zeros((len(Y), K), np.float32)
    MU[np.arange(len(Y)), Y] = 1
    MT = np.zeros((n, K, K), np.float32)
    for i in range(n):
        y = Y[off[i] : off[i + 1]]
        np.add.at(MT[i], (y[:-1], y[1:]), 1)
    ell, gaps = np.zeros(n), np.zeros(n)
    rng = np.random.default_rng(a.seed)
    state = (X, Y, off, W, Tr, MU, MT, ell)
    sweep(np.zeros(0, np.int64), *state, gaps, a.lam, True)  # compile outside the clock
    left, clock, cpu, passes = sorted(a.gaps, reverse=True), 0.0, 0.0, 0
    while left and clock < a.max_seconds:
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(10):
            if passes == 0:
                sweep(rng.permutation(n), *state, gaps, a.lam, True)
            else:
                for _ in range(20):
                    p_i = np.maximum(gaps, 0)
                    sweep(rng.choice(n, max(1, n // 20), p=p_i / p_i.sum()), *state, gaps, a.lam, True)
            passes += 1
        sweep(np.arange(n), *state, gaps, a.lam, False)  # exact gaps: certificate and refresh
        passes += 1
        clock += time.perf_counter() - start
        cpu += time.process_time() - cpu_start
        gap = float(gaps.sum())
        dual = float(ell.sum() - a.lam / 2 * ((W.astype(float) ** 2).sum() + (Tr.astype(float) ** 2).sum()))
        while left and gap <= left[0]:
            print(
                json.dumps(
                    {
                        "size": a.size,
                        "lam": a.lam,
                        "threshold": left.pop(0),
                        "seconds": round(clock, 3),
                        "cpu_seconds": round(cpu, 3),
                        "passes": passes,
                        "primal": dual + gap,
                        "dual": dual,
                        "gap": gap,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
