"""What an output is: a folder for each kind, with its structure, its head, its oracle and the oracle's kernels.

Each folder names what it exports; here is one line for each.
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
