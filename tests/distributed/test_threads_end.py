"""The threads of a process group end with it, so that none of them is alive while Python finalises."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from torch import distributed as dist

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="/proc names the threads")
@pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")
def test_an_optimizer_does_not_keep_the_group(tmp_path):
    code = f"""
    import os
    from torch import distributed as dist
    from torchssvm import BCFW, DualState, LinearMulticlass
    dist.init_process_group("gloo", init_method="file://{tmp_path}/meeting", rank=0, world_size=1)
    head = LinearMulticlass(4, 3)
    BCFW(head.parameters(), DualState.for_head(head, 10, 0.1)).zero_grad()
    dist.destroy_process_group()
    tasks = "/proc/self/task/"
    names = [open(tasks + task + "/comm").read().strip() for task in os.listdir(tasks)]
    print([name for name in names if "gloo" in name])
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
