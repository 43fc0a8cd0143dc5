"""One measure, in this process: python -m suite.worker PART MEASURE OPTIONS; the last line printed is its JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    """Run it and print what it returns."""
    part, measure, options = sys.argv[1:]
    if "torch" not in sys.modules and (threads := os.environ.get("OMP_NUM_THREADS")):
        import torch

        torch.set_num_threads(int(threads))
    found = importlib.import_module(f"suite.{part}").MEASURES[measure](**json.loads(options))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
