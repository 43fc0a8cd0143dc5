"""Tokens that a mask selects, moved to the front: what a mask with holes has to become before it has lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.arguments import check_tensor, describe
from torchssvm.core.naming import row_name


def select_tokens(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Pack the tokens that ``mask`` selects: each row's come first, in their order, and the rest is padding.

    For masks whose True do not all come first, such as the first piece of every word of a tokeniser, or tokens that
    have a label: ``x, y, lengths = select_tokens(mask, x, y)``. Labels that are decoded for packed tokens go back by
    ``whole[mask] = labels[labels >= 0]``.

    Args:
        mask: ``[B, N]`` bool, True at the tokens to keep, at least one in every row.
        tensors: ``[B, N, ...]`` each, such as features, through which gradients flow, and labels.

    Returns:
        The tensors ``[B, T, ...]``, T the largest length, with 0 in the padding of floating-point numbers and -1 in
        that of whole numbers; and the lengths, ``[B]`` int64.

    Raises:
        TypeError: A tensor is not one.
        ValueError: ``mask`` is not bool ``[B, N]``, has a row without True, or a tensor has other sizes.

    Example:
        >>> mask = torch.tensor([[False, True, False, True], [True, False, False, False]])
        >>> select_tokens(mask, torch.tensor([[-100, 2, -100, 0], [1, -100, -100, -100]]))
        (tensor([[ 2,  0],
                [ 1, -1]]), tensor([2, 1]))
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim != 2:
        raise ValueError(f"mask must be bool [B, N], True at the tokens to keep, got {describe(mask)}; see .bool()")
    for place, tensor in enumerate(tensors):
        if check_tensor(tensor, f"tensors[{place}]").shape[:2] != mask.shape:
            raise ValueError(
                f"tensors[{place}] has shape {list(tensor.shape)}, and mask {list(mask.shape)}: they must share B and N"
            )
    lengths = mask.sum(1)
    if bool((empty := lengths == 0).any()):
        raise ValueError(
            f"mask has no True in {row_name(int(empty.nonzero()[0, 0]))}, and an example needs a token: leave it out"
        )
    longest = int(lengths.max()) if len(lengths) else 0
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    padding = torch.arange(longest, device=mask.device) >= lengths.unsqueeze(1)
    rows = torch.arange(len(mask), device=mask.device).unsqueeze(1)

    def packed(tensor: Tensor) -> Tensor:
        fill = 0 if tensor.is_floating_point() or tensor.dtype == torch.bool else -1
        beyond = padding.view(*padding.shape, *[1] * (tensor.ndim - 2))
        return tensor[rows, order].masked_fill(beyond, fill)

    return (*map(packed, tensors), lengths)
