"""Checkpoints: what is saved comes back to the bit, all of it or nothing, and a killed process loses none."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gdmm_chains import gdmm_on_chains
from kernel_problems import kernel_svm
from problems import Training, assert_same, chain, multiclass
from torch import nn

import torchssvm.files
from torchssvm import (
    BCFW,
    CompiledBCFW,
    DualState,
    ExponentiatedGradient,
    GapBatchSampler,
    Labelings,
    WeightedAverage,
    load_checkpoint,
    save_checkpoint,
)
from torchssvm.files import damage, previous, whole_file, write_text
from torchssvm.kernels import RBF
from torchssvm.path import PathRun
