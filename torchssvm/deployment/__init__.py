"""Trained models outside of training: one module of plain torch operators, and one safe file.

``Decoder`` for ``torch.export``, ``torch.compile``, AOTInductor and ONNX; ``save_model``, ``load_model`` and
``load_head`` for files. Imported by those who ask only.
"""

from torchssvm.deployment.decoder import Decoder

__all__ = ["Decoder"]
