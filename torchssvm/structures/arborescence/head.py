"""The linear head of arborescences: the score of an arc is linear in its sparse features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_int64, check_whole
from torchssvm.core.operators import transformed
from torchssvm.core.potentials import Parts, Potentials, own_weights
from torchssvm.core.precision import full_precision
from torchssvm.core.row_sparse import add_at, adds_in_order, per_example_rows
from torchssvm.core.sparse_features import SparseFeatures, as_lists
from torchssvm.structures.arborescence.structure import Arborescence, NonProjective, Projective
from torchssvm.structures.chain.head import sparse_emission
from torchssvm.structures.common import Head, check_lengths, check_operands, check_shape, check_structure, weight


class LinearArcs(Head):
    """Scores of arcs, ``score[t, h] = sum_p values[t, h, p] weight[columns[t, h, p]]``; zero weights at the start.

    Features are lists of columns, so there may be many (such as hashed words and tags of head and token). Per-example
    gradients are sparse; the gradient of the batch is dense.

    With ``num_labels`` L, weights are ``[F, L]``, and an arc has a score for each label.

    Args:
        in_features: F, the number of columns.
        num_labels: L, the number of labels of an arc; None is the structure's, or arcs without labels.
        structure: How outputs are decoded and what they cost; None is ``Arborescence(num_labels=num_labels)``: all
            arborescences, with the share of wrong heads as loss.

    Raises:
        ValueError: ``in_features`` or ``num_labels`` is less than 1, or the structure has another ``num_labels``.

    Example:
        >>> columns = torch.tensor([[[0, 1, 2], [0, 3, 2]]]).unsqueeze(-1)  # [B, N, N + 1, P]: one feature for each arc
        >>> head = LinearArcs(in_features=4)
        >>> with torch.no_grad():
        ...     head.weight[1] = 1.0
        >>> head(SparseFeatures(columns)).single
        tensor([[[0., 1., 0.],
                 [0., 0., 0.]]], grad_fn=<MaskedFillBackward0>)
    """

    def __init__(
        self, in_features: int, *, num_labels: int | None = None, structure: Arborescence | None = None
    ) -> None:
        super().__init__()
        self.in_features = check_whole(in_features, "in_features")
        self.structure = check_structure(structure, "Arborescence()") or Arborescence(num_labels=num_labels)
        self.num_labels = getattr(self.structure, "num_labels", num_labels)
        if num_labels not in (None, self.num_labels):
            raise ValueError(f"structure={structure} does not fit num_labels={num_labels}: give both the same one")
        self.weight = weight(torch.zeros(self.in_features, *([] if self.num_labels is None else [self.num_labels])))

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.arborescence.kind import ArcsAdapter

        among = getattr(self.structure, "among", None)
        if type(self.structure) is not Arborescence or type(among) not in (Projective, NonProjective):
            return None
        return ArcsAdapter(self, projective=type(among) is Projective)

    def forward(self, x: SparseFeatures | Tensor, lengths: Tensor | None = None) -> Potentials:
        """Columns ``[B, N, N+1, P]`` -> potentials ``[B, N, N+1]``, or ``[B, N, N+1, L]``; in the weights' dtype.

        Args:
            x: ``x.columns[b, t-1, h]`` holds the features of the arc from head h (0 is the root) to token t, int64 0 to
                F - 1, -1 as padding; ``x.values``, if not None, holds their values. A bare tensor stands for the
                columns. Entries beyond a length, as token or as head, are ignored.
            lengths: ``[B]`` int64, 1 to N, the number of tokens of each example; None means N for all.

        Raises:
            ValueError: A shape, a dtype, a column or a length does not fit.
        """
        columns, values, outside = self.check_arcs(x, lengths)
        ragged = {} if lengths is None else {"arcs": 0}
        weights = None if values is not None and values.requires_grad else own_weights(self)
        if self.num_labels is not None:
            scores, products = self._by_label(columns.masked_fill(outside.unsqueeze(3), -1), values)
            return Potentials({"arcs": scores}, lengths, ragged=ragged, weights=weights, **products)
        size = len(self.weight)
        with full_precision(columns.device):
            # Padding, -1, reads the first or the last weight. Either way the backward pass sums in a fixed order.
            if adds_in_order(self.weight):
                chosen = self.weight.index_select(0, columns.clamp(min=0).flatten()).view(columns.shape)
            else:
                chosen = self.weight[columns.long()]
            chosen = torch.where(columns >= 0, chosen, 0.0)
            if values is not None:
                values = torch.where(columns >= 0, values.to(self.weight.dtype), 0.0)
                chosen = chosen * values
            scores = chosen.sum(3).masked_fill(outside, 0.0)

        def worth_of(columns: Tensor, *arcs: Tensor) -> Tensor:
            return (columns >= 0).to(self.weight.dtype) if values is None else values.detach()[arcs or ...]

        def adjoint(parts: Parts) -> list[Tensor]:
            (v,) = parts.values()
            example, t, h = v.nonzero(as_tuple=True)  # few arcs change
            known = columns[example, t, h].long()
            chosen = known >= 0
            amount = (v[example, t, h].unsqueeze(1) * worth_of(known, example, t, h))[chosen]
            owner = example.unsqueeze(1).expand_as(chosen)[chosen]
            return [per_example_rows(owner, known[chosen], amount, (len(columns), size))]

        def gram_product(parts: Parts) -> Parts:
            (v,) = parts.values()
            used, place = columns.clamp(min=0).unique(return_inverse=True)  # the columns of the batch
            worth = worth_of(columns)
            amount = (v.unsqueeze(3) * worth).flatten(1)
            gradient = add_at(v.new_zeros(len(columns), len(used)), place.flatten(1), amount)
            change = gradient.gather(1, place.flatten(1)).view(columns.shape)
            return {"arcs": (change * worth).sum(3).masked_fill(outside, 0.0)}

        return Potentials(
            {"arcs": scores}, lengths, ragged=ragged, adjoint=adjoint, gram_product=gram_product, weights=weights
        )

    def _by_label(self, columns: Tensor, values: Tensor | None) -> tuple[Tensor, dict[str, Any]]:
        """Scores of arcs and labels, and adjoint and Gram product: arcs are tokens, and their labels are states."""
        flat = SparseFeatures(columns.flatten(1, 2), None if values is None else values.flatten(1, 2))
        lists = as_lists(flat, self.in_features, self.weight.dtype)
        one = torch.ones(len(columns), dtype=torch.int64, device=columns.device)
        with full_precision(columns.device):
            if transformed():
                scores = lists.emission(self.weight)
            else:
                scores = sparse_emission(lists.values, self.weight, None, None, None, lists, one, False)
        respond = lists.respond()

        def adjoint(parts: Parts) -> list[Tensor]:
            return [lists.per_example(parts["arcs"].flatten(1, 2), self.in_features)]

        def gram_product(parts: Parts) -> Parts:
            return {"arcs": respond(parts["arcs"].flatten(1, 2)).view_as(parts["arcs"])}

        return scores.unflatten(1, columns.shape[1:3]), {"adjoint": adjoint, "gram_product": gram_product}

    def check_arcs(self, x: SparseFeatures | Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Columns, int32 or int64, values, and which arcs are beyond the lengths, ``[B, N, N+1]``; see forward."""
        columns, values = x if isinstance(x, SparseFeatures) else (x, None)
        columns = check_shape(columns, "columns", "B", "N", "N+1", "P")
        if columns.dtype != torch.int32:
            columns = check_int64(columns, "columns", columns.shape)
        if values is not None:
            check_operands(values=(values, columns.shape))
        inside = check_lengths(lengths, columns)
        heads = torch.nn.functional.pad(inside, (1, 0), value=True)
        outside = ~(inside.unsqueeze(2) & heads.unsqueeze(1))
        size = len(self.weight)
        if not _within(columns, size):  # entries beyond a length may hold anything
            columns = columns.masked_fill(outside.unsqueeze(3), -1)
            if not _within(columns, size):
                low, high = (int(bound) for bound in columns.aminmax())
                wrong = low if low < -1 else high
                raise ValueError(f"columns has {wrong}: give 0 to in_features - 1 = {size - 1}, or -1 for none")
        return columns, values, outside


def _within(columns: Tensor, size: int) -> bool:
    """Whether all columns are -1, which is padding, or 0 to ``size - 1``."""
    low, high = columns.aminmax() if columns.numel() else (-1, -1)
    return bool(low >= -1 and high < size)
