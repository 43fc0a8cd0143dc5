"""One folder for each kind of output, with its structure, head, oracle and kernels.

Each kind's ``__all__`` lists its public names; they are re-exported here, with what every oracle returns.
"""

# ruff: noqa: F403
from torchssvm.core.structure import OracleResult
from torchssvm.structures import (
    arborescence,
    chain,
    graph_cut,
    matching,
    multiclass,
    multilabel,
    pose,
    slack_rescaling,
    torch_struct,
    tree,
)
from torchssvm.structures.arborescence import *
from torchssvm.structures.chain import *
from torchssvm.structures.graph_cut import *
from torchssvm.structures.matching import *
from torchssvm.structures.multiclass import *
from torchssvm.structures.multilabel import *
from torchssvm.structures.pose import *
from torchssvm.structures.slack_rescaling import *
from torchssvm.structures.torch_struct import *
from torchssvm.structures.tree import *

__all__ = ["OracleResult"]
__all__ += arborescence.__all__
__all__ += chain.__all__
__all__ += graph_cut.__all__
__all__ += matching.__all__
__all__ += multiclass.__all__
__all__ += multilabel.__all__
__all__ += pose.__all__
__all__ += slack_rescaling.__all__
__all__ += torch_struct.__all__
__all__ += tree.__all__
