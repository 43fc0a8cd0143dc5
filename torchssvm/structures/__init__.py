"""One folder for each kind of output, with its structure, head, oracle and kernels.

Each kind's ``__all__`` lists its public names; they are re-exported here, with what every oracle returns.
"""

# ruff: noqa: F403
from sys import modules as _modules

from torchssvm.core.decoding import OracleResult
from torchssvm.structures.arborescence import *
from torchssvm.structures.chain import *
from torchssvm.structures.decisions import *
from torchssvm.structures.graph_cut import *
from torchssvm.structures.hidden_states import *
from torchssvm.structures.matching import *
from torchssvm.structures.multiclass import *
from torchssvm.structures.multilabel import *
from torchssvm.structures.pairwise_graph import *
from torchssvm.structures.pose import *
from torchssvm.structures.ranking import *
from torchssvm.structures.segments import *
from torchssvm.structures.slack_rescaling import *
from torchssvm.structures.torch_struct import *
from torchssvm.structures.tree import *

_KINDS = [one for name, one in _modules.items() if name.rpartition(".")[0] == __name__ and hasattr(one, "__all__")]
__all__ = ["OracleResult", *(name for kind in _KINDS for name in kind.__all__)]
