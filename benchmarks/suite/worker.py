"""One measure, in this process: python -m suite.worker PART MEASURE OPTIONS; the last line printed is its JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys

import torch


def main() -> None:
    """Run it and print what it returns."""
    part, measure, options = sys.argv[1:]
    function = importlib.import_module(f"suite.{part}").MEASURES[measure]
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    print(json.dumps(function(**json.loads(options))))


if __name__ == "__main__":
    main()
