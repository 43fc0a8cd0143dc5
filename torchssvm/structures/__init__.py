"""One folder for each kind of output, with its structure, head, oracle and kernels.

Each folder's ``__all__`` lists its public names; they are re-exported here.
"""

# ruff: noqa: F403
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
