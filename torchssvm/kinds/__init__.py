"""What the compiled loop needs of an example, whatever its kind: rows of features, and functions on one example."""

from torchssvm.kinds.form import Form

__all__ = ["Form"]
