"""Training under a Lightning ``Trainer``. Needs the extra ``torchssvm[lightning]``."""

try:
    import lightning  # noqa: F401
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "lightning":
        raise
    raise ImportError("torchssvm.lightning needs Lightning: pip install 'torchssvm[lightning]'") from error

from torchssvm.lightning.alternate import Alternate
from torchssvm.lightning.averaged_weights import AveragedWeights
from torchssvm.lightning.duality_gap import DualityGap
from torchssvm.lightning.factorwise import FactorwiseSVM
from torchssvm.lightning.report import Report
from torchssvm.lightning.structured_svm import StructuredSVM
from torchssvm.lightning.write_predictions import WritePredictions

__all__ = ["Alternate", "AveragedWeights", "DualityGap", "FactorwiseSVM", "Report", "StructuredSVM", "WritePredictions"]
