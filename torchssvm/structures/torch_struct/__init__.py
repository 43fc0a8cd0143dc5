"""torch-struct's distributions as structures."""

from torchssvm.structures.torch_struct.structure import TorchStruct

__all__ = ["TorchStruct"]
