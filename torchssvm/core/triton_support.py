"""Whether Triton can compile here, and which tensors its kernels take."""

from __future__ import annotations

import functools
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchssvm.core.packages import warn


def fits_triton(*tensors: Tensor) -> bool:
    """Whether Triton's kernels take these tensors: on a CUDA device, contiguous, not of half precision or traced."""
    for tensor in tensors:
        if not (tensor.is_cuda and tensor.is_contiguous()) or tensor.dtype in (torch.float16, torch.bfloat16):
            return False
    return not torch.compiler.is_compiling() and triton_available()


@functools.cache
def triton_available() -> bool:
    """Whether Triton is installed, as it is with the CUDA builds of torch, and can compile; warns where it cannot."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton
    import triton.language

    if not hasattr(triton.language, "gather"):
        lacking = f"Triton {triton.__version__} has no gather: install torch 2.7 or newer, which brings Triton 3.3"
    elif not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        return True
    else:
        try:
            triton.runtime.driver.active.get_current_target()  # which compiles what starts kernels
            return True
        except Exception as error:
            lacking = (
                f"Triton found no C compiler or no Python.h ({type(error).__name__}: {str(error).strip()[:200]}): "
                "install gcc and the headers of Python, such as python3-dev"
            )
    warn(f"torch operations and CPU kernels replace the kernels for CUDA, which is slower: {lacking}")
    return False


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which Triton starts its kernels on the device of ``tensor``; nothing in its interpreter on a CPU."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
