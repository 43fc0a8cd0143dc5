"""Training under a Lightning ``Trainer``. Needs the extra ``torchssvm[lightning]``."""

from torchssvm.core.arguments import needs

with needs("torchssvm.lightning needs Lightning: pip install 'torchssvm[lightning]'", "lightning"):
    import lightning  # noqa: F401

from torchssvm.lightning.averaged_weights import AveragedWeights
from torchssvm.lightning.duality_gap import DualityGap
from torchssvm.lightning.factorwise import FactorwiseSVM
from torchssvm.lightning.joint_training import HeadChoice, JointTraining
from torchssvm.lightning.predicting import WritePredictions
from torchssvm.lightning.report import Report
from torchssvm.lightning.safe_checkpoint_io import SafeCheckpointIO
from torchssvm.lightning.span_f1 import SpanF1
from torchssvm.lightning.structured_svm import StructuredSVM

__all__ = [
    "AveragedWeights",
    "DualityGap",
    "FactorwiseSVM",
    "HeadChoice",
    "JointTraining",
    "Report",
    "SafeCheckpointIO",
    "SpanF1",
    "StructuredSVM",
    "WritePredictions",
]
