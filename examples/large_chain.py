"""Chains of thousands of states: trained by GDMM, which never looks at all pairs of them.

python examples/large_chain.py --labels 1000
python examples/large_chain.py --data words --labels 3000

``synthetic`` chains come from a hidden Markov model, so that the error of the best weights is known; ``words`` are the
sentences of CoNLL-2000 with letters dropped, changed and swapped, and a labeling says which words they were. Prints a
certificate, and the error on test chains beside that of the same model without transitions, trained on tokens alone.
Compiles before the clock starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from common import count, positive
from factorwise import Run, factorwise_flags, finish, penalty_of, train

from torchssvm import GDMM, RunReport, SparseLinearChain, evaluate, in_order
from torchssvm.datasets import LargeChains, SparseChains, WordChains

DECODING = 1e10  # additions that decoding the test chains may take: K^2 for each token
CHAINS = {"synthetic": 1000, "words": 1500}


class Data(NamedTuple):
    """Training and test chains, and the error of the best weights, if they are known."""

    train: SparseChains
    test: SparseChains
    least_error: float | None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags' values."""
    flags = factorwise_flags(__doc__, report="runs/large_chain")
    flags.add_argument("--data", choices=sorted(CHAINS), default="synthetic", help="(default: %(default)s)")
    flags.add_argument("--labels", type=count, default=1000, metavar="K", help="states (default: %(default)s)")
    flags.add_argument("--chains", type=count, metavar="N", help="training chains (default: 1000; words: 1500)")
    flags.add_argument(
        "--test-chains",
        type=count,
        metavar="N",
        help="as many as that (default: 500, less where K is large: their decoding looks at all pairs)",
    )
    flags.add_argument("--lam", type=positive, default=0.01, help="regularisation (default: %(default)s)")
    flags.add_argument("--rho", type=positive, help="penalty, in mean costs of a wrong label (default: 2)")
    args = flags.parse_args(arguments)
    args.chains = args.chains or CHAINS[args.data]
    return args


def load(args: argparse.Namespace) -> Data:
    """What the flags ask for."""
    tests = args.test_chains or max(min(500, int(DECODING / (15.0 * args.labels**2))), 10)
    if args.data == "synthetic":
        test = LargeChains("test", num_states=args.labels, num_chains=tests)
        return Data(LargeChains(num_states=args.labels, num_chains=args.chains), test, test.truth_error)
    chains = WordChains("train", num_states=args.labels, num_chains=args.chains)
    return Data(chains, WordChains("test", vocabulary=chains.vocabulary, num_chains=tests), None)


def apart(chains: SparseChains) -> SparseChains:
    """Every token as a chain of its own."""
    return SparseChains(
        torch.arange(len(chains.states) + 1),
        chains.rows,
        chains.columns,
        chains.states,
        chains.in_features,
        chains.num_states,
        chains.values,
    )


def fit(chains: SparseChains, args: argparse.Namespace) -> tuple[SparseLinearChain, Run]:
    """Train by GDMM."""
    head = SparseLinearChain(chains.in_features, chains.num_states, boundary=False)
    penalty = penalty_of(args.rho, len(chains) / len(chains.states))  # a wrong state costs 1 / length
    optim = GDMM(head, in_order(chains), num_examples=len(chains), lam=args.lam, penalty=penalty, seed=args.seed)
    return head, train(optim, args)


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    data = load(args)
    compiling = argparse.Namespace(**{**vars(args), "max_passes": 2})
    fit(LargeChains(num_states=args.labels, num_chains=3), compiling)
    head, run = fit(data.train, args)
    single, single_run = fit(apart(data.train), args)
    on_test = evaluate(head, head.structure, in_order(data.test, batch_size=32))
    alone = evaluate(single, single.structure, in_order(apart(data.test)))
    states = data.test.states
    usual = int(torch.bincount(data.train.states).argmax())
    report = RunReport.from_history(
        f"{args.data} chains of {args.labels} states",
        run.history,
        num_weights=sum(p.numel() for p in head.parameters()),
        stopped_because=run.stopped_because,
        test=on_test,
        seed=args.seed,
        extra={
            **{name: getattr(args, name) for name in ("data", "labels", "chains", "rho")},
            "tokens": len(data.train.states),
            "test_chains": len(data.test),
            **run.figures(),
            "test_token_error_alone": alone.token_error,
            "alone_gap": single_run.certificate.gap,
            "alone_cpu_seconds": single_run.cpu_seconds,
            "test_token_error_of_the_most_frequent_state": float((states != usual).double().mean()),
            "test_token_error_of_the_truth": data.least_error,
        },
    )
    listed = ("pass_cpu_seconds", "violations", "visited_per_query")
    shown = {name: value for name, value in report.extra.items() if name not in listed}
    print(f"\n{replace(report, extra=shown)}\n\n{run.certificate}\n")
    errors = {
        "chain (GDMM)": on_test.token_error,
        "every token alone (GDMM)": alone.token_error,
        "most frequent state": report.extra["test_token_error_of_the_most_frequent_state"],
        "the weights it was drawn by": data.least_error,
    }
    print(f"{'':28}  wrong states of {len(states)} test tokens")
    for name, error in errors.items():
        print(f"{name:28}  " + ("not known" if error is None else f"{100 * error:.2f} %"))
    finish(args, report, run)


if __name__ == "__main__":
    main()
