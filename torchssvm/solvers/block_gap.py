"""The block gap: the loss that trains the head. Its backward pass proposes a step of ``block_coordinate.py``."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.gradients import adjoint, combine
from torchssvm.core.operators import first_occurrences
from torchssvm.core.potentials import Potentials, as_potentials, scale
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import dense
from torchssvm.distributed.exchange import refusing_on_all
from torchssvm.dual.checks import check_batch, check_dual, check_repeated, check_targets, digest_examples
from torchssvm.dual.state import DualState, Mailbox
from torchssvm.solvers.block_coordinate import Proposal, find_gaps, find_steps
from torchssvm.steps.box_qp import BlockSteps, BoxQP, check_block_steps
from torchssvm.steps.directions import DirectionRule, FrankWolfe, MaxOracle, OracleRule, check_rules


class BlockGap(nn.Module):
    """The duality gap of a batch's blocks: the loss whose gradient is the BCFW direction ([B13] Alg. 4, [G16] eq. 6).

    The value is ``sum_i g_i``, with ``g_i = <p(s_i) - mu_i, theta_i>/n + L_i(s_i)/n - l_i >= 0`` and s_i from the
    loss-augmented max oracle. The gradient with respect to the weights is ``d = (1/n) sum_i gamma_i Phi_i^T Delta_i``,
    with ``Delta_i = p(s_i) - mu_i`` for Frank-Wolfe directions. The backward pass proposes the step to the dual,
    multiplied by the upstream gradient; ``BCFW.step`` takes it. Calls without a backward pass change nothing.

    ``block_steps`` chooses the gamma_i if per-example gradients are available: from the head's ``adjoint``, or by
    ``torch.func.vmap``, which ``DualState.for_head`` prepares. Otherwise every gamma_i is 1: for heads with in-place
    operations, custom autograd functions without ``vmap`` rules or control flow that depends on values, for compiled
    heads, and if the gradients of all batches that wait for the step take more than 256 MiB. A warning says so once for
    each head.

    With an approximate oracle (``Decoding.exact`` is False) or a cached labeling, s_i need not be the best output. The
    value is then a lower bound of the blocks' gap and can be negative; the step never lowers the dual and may be 0
    ([B13] appendix C). ``certify`` uses the oracle's upper bounds instead, and says ``exact=False``.

    Args:
        direction: The direction of each block; None is ``FrankWolfe()``.
        oracle: Whether to decode or to take a cached labeling; None is ``MaxOracle()``, which always decodes.
        block_steps: The step of each block: ``BoxQP(sweeps=5)`` (None) or ``CommonStep()``.

    Raises:
        ValueError: ``direction`` or ``oracle`` needs a dual that keeps labelings, or ``block_steps`` does not support
            these rules.
        TypeError: ``dual`` is not a DualState, or a rule is not of its kind.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> loss = BlockGap(DualState.for_head(head, num_examples=30, lam=0.1))
        >>> loss(head(points[:5]), classes[:5], torch.arange(5))  # weights of zero: each block has the gap 1 / n
        tensor(0.1667, dtype=torch.float64, grad_fn=<_ProposeBackward>)
    """

    def __init__(
        self,
        dual: DualState,
        direction: DirectionRule | None = None,
        *,
        oracle: OracleRule | None = None,
        block_steps: BlockSteps | None = None,
    ) -> None:
        super().__init__()
        self.dual = check_dual(dual)
        self.direction = direction if direction is not None else FrankWolfe()
        self.oracle = oracle if oracle is not None else MaxOracle()
        self.block_steps = check_block_steps(block_steps if block_steps is not None else BoxQP())
        check_rules(self.direction, self.oracle, dual.storage)
        if self.direction.needs_curvature:
            dual.storage.keep_curvature()

    def forward(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any, index: Tensor) -> Tensor:
        """The sum of the batch's block gaps, a float64 scalar.

        Args:
            potentials: The head's output, in the weights' dtype.
            target: Targets of the batch, as the structure takes them.
            index: ``[B]`` int64, positions of the examples in the dataset. A repeated example counts once.

        Raises:
            ValueError: Index, target or potentials are not valid, several states of HiddenStates show a label of the
                target, or the oracle returned invalid outputs.
            TypeError: The potentials have another dtype than the weights.
            RuntimeError: An example's target has changed since its first visit; or its features have, and the storage
                cannot follow them. Of several processes, the others raise RankError in their next ``BCFW.step``.
            MemoryError: The dual blocks of all examples would not fit.
        """
        potentials, dual = as_potentials(potentials), self.dual
        # In training, the other processes wait for the step.
        with refusing_on_all(dual.ranks, dual.parameters) if _trains(potentials) else nullcontext():
            return self.propose(potentials, target, index)

    def propose(self, potentials: Potentials, target: Any, index: Tensor) -> Tensor:
        """As calling it, for callers that tell the other processes of errors by themselves."""
        training = _trains(potentials)
        with full_precision(potentials.device):
            batch, theta, target = self._blocks(potentials, target, index, training)
            find_gaps(batch, self, potentials, theta, target, training)
            if not training:
                return batch.gap()
            combined, added = find_steps(batch, self, potentials)
            # The gradient of the loss is d = sum_i gamma_i d_i.
            inputs, outputs = self._outputs(batch, potentials, combined, added)
            return _Propose.apply(self.dual.mailbox, batch, outputs, *inputs)

    def _outputs(
        self, batch: Proposal, potentials: Potentials, combined: list[Tensor] | None, added: list[Tensor] | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tensors and the gradients that the backward pass gives them; sets ``batch.reference``.

        These are the weights, where the potentials depend on nothing else that is trained, and else the potentials.
        """
        parameters, share = self.dual.parameters, batch.gammas / self.dual.num_examples
        alone = potentials.weights is not None and all(map(operator.is_, potentials.weights, parameters))
        if combined is not None and alone:
            batch.reference = combined
            return list(parameters), combined
        weighted = scale(batch.parts, share)
        batch.reference = adjoint(potentials, weighted, parameters, sparse=True)
        if alone:
            return list(parameters), batch.reference
        inputs, outputs = list(potentials.tensors.values()), [weighted[name] for name in potentials.tensors]
        if added is not None:
            more = combine(added, share)
            batch.reference = [dense(a) + b for a, b in zip(batch.reference, more, strict=True)]
            inputs, outputs = inputs + list(parameters), outputs + more
        return inputs, outputs

    def _blocks(
        self, potentials: Potentials, target: Any, index: Tensor, training: bool
    ) -> tuple[Proposal, Potentials, Any]:
        """The blocks of the batch, the potentials as numbers, and the target as the structure has checked it."""
        dual = self.dual
        potentials.index, index = index, check_batch(dual, index, potentials)
        rows = first_occurrences(index)
        given, target = target, dual.structure.check_target(target, potentials)
        if training:
            dual.structure._check_chosen(given, target, potentials.index)
        digests = digest_examples(target, potentials)
        if len(rows) < len(index):
            check_repeated(dual, digests, index)
        theta = potentials.examining()
        with torch.no_grad():
            stored = dual.storage.gather(index, theta, target)
            new = digests if check_targets(dual, digests, index) else None
            if training:
                dual.storage.check_features(stored, potentials)
        return Proposal(dual.version, index, rows, new, stored, self.block_steps), theta, target


def _trains(potentials: Potentials) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and potentials.requires_grad


class _Propose(torch.autograd.Function):
    """Forward returns the gap; backward returns ``gradients`` times the upstream gradient, and proposes the step."""

    @staticmethod
    def forward(ctx: Any, mailbox: Mailbox, batch: Proposal, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.mailbox, ctx.batch, ctx.gradients = mailbox, batch, gradients
        return batch.gap()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        batch = copy(ctx.batch)  # the graph may be kept, and used again
        batch.factor = upstream[0].detach()
        scale = batch.factor.to(ctx.gradients[0].dtype)
        # The new tensors become ``.grad``: the optimizer compares these with the reference.
        if any(gradient.is_sparse for gradient in ctx.gradients):
            gradients: Sequence[Tensor] = [gradient * scale for gradient in ctx.gradients]
        else:  # in one kernel
            gradients = torch._foreach_mul(ctx.gradients, scale)
        ctx.mailbox.put(batch)
        return (None, None, None, *gradients)
