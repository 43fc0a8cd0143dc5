"""Kernel models of the small problems, and their explicit feature maps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from cases.problems import Problem
from torchssvm import LinearChain, LinearMulticlass
from torchssvm.solvers.kernel import KernelChain, KernelHead, KernelMulticlass, KernelSSVM, Polynomial


def kernel_head(problem: Problem, kernel: Any) -> KernelHead:
    """The kernel head that is like the problem's linear head."""
    head = problem.head
    width = problem.x.shape[-1]
    if isinstance(head, LinearMulticlass):
        made: KernelHead = KernelMulticlass(
            kernel, width, head.structure.num_classes, bias=head.bias is not None, structure=head.structure
        )
    else:
        assert isinstance(head, LinearChain)
        options = {
            "bias": head.bias is not None,
            "boundary": head.start_transitions is not None,
            "structure": head.structure,
        }
        states = head.structure.num_states
        if head.positions is None:
            made = KernelChain(kernel, width, states, **options)
        else:
            linear = LinearChain(0, states, positions=head.positions, **options)
            made = KernelHead(kernel, width, linear, unary="emission", num_states=states, structure=linear.structure)
    return made.to(problem.x.dtype)


def kernel_svm(problem: Problem, kernel: Any, **options: Any) -> KernelSSVM:
    lam = options.pop("lam", problem.lam)
    return KernelSSVM(kernel_head(problem, kernel), problem.x, problem.y, problem.lengths, lam=lam, **options)


def with_features(problem: Problem, x: Tensor) -> Problem:
    """The same problem with other features, under a fresh linear head of the same kind."""
    head = problem.head
    if isinstance(head, LinearMulticlass):
        made: Any = LinearMulticlass(
            x.shape[-1], head.structure.num_classes, bias=head.bias is not None, structure=head.structure
        )
    else:
        made = LinearChain(
            x.shape[-1],
            head.structure.num_states,
            bias=head.bias is not None,
            boundary=head.start_transitions is not None,
            positions=head.positions,
            structure=head.structure,
        )
    return Problem(made.to(x.dtype), x, problem.y, problem.lengths, problem.lam)


def gram_features(problem: Problem, kernel: Any) -> Problem:
    """Features whose inner products are the kernel's, from the eigenvectors of the Gram matrix of all places."""
    flat = problem.x.flatten(0, -2)
    values, vectors = torch.linalg.eigh(kernel(flat, flat))
    assert float(values[0]) > -1e-9 * float(values[-1])
    mapped = vectors * values.clamp(min=0.0).sqrt()
    return with_features(problem, mapped.view(*problem.x.shape[:-1], -1))


def monomials(kernel: Polynomial, x: Tensor) -> Tensor:
    """The explicit feature map of a polynomial kernel: all monomials, with the multinomial theorem's factors."""
    extended = torch.cat([math.sqrt(kernel.scale) * x, torch.full_like(x[..., :1], math.sqrt(kernel.constant))], -1)
    columns = []
    for chosen in itertools.combinations_with_replacement(range(extended.shape[-1]), kernel.degree):
        counts = [chosen.count(i) for i in set(chosen)]
        factor = math.factorial(kernel.degree) / math.prod(math.factorial(c) for c in counts)
        columns.append(math.sqrt(factor) * extended[..., list(chosen)].prod(-1))
    return torch.stack(columns, -1)


def circles(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes on concentric circles, which no line separates: x ``[n, 2]``, y ``[n]``."""
    random = torch.Generator().manual_seed(seed)
    angle = torch.rand(n, generator=random, dtype=torch.float64) * 2 * math.pi
    y = torch.arange(n) % 2
    radius = 1.0 + 1.5 * y + 0.1 * torch.randn(n, generator=random, dtype=torch.float64)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y
