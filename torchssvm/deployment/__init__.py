"""Trained models outside of training: one module of plain torch operators, and one safe file.

``Decoder`` for ``torch.export``, ``torch.compile``, AOTInductor and ONNX; ``save_model``, ``load_model`` and
``load_head`` for files; ``batch_of_names`` for features by name. Imported by those who ask only.
"""

from torchssvm.deployment.decoder import Decoder, batch_of_names
from torchssvm.deployment.files import SavedModel, UnitRows, load_head, load_model, save_model

__all__ = ["Decoder", "SavedModel", "UnitRows", "batch_of_names", "load_head", "load_model", "save_model"]
