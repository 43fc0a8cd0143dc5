"""``torchssvm info``: what is installed here, and what it runs on."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from torchssvm.compiler import stock
from torchssvm.warm import folder_of_kernels


def describe_installation() -> str:
    """Versions, extras, machine, threads, device and compiled kernels, a line for each: what a bug report needs.

    An extra is listed if all its packages are installed, whatever their versions. Nothing is compiled.

    Example:
        >>> from torchssvm.info import describe_installation
        >>> print(describe_installation())
        torchssvm 0.2.0
        Python 3...
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    lines = {
        "extras": ", ".join(name for name, packages in _extras().items() if all(map(version, packages))) or "none",
        "system": platform.platform(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "threads": f"{torch.get_num_threads()} of torch, OMP_NUM_THREADS{'=' + threads if threads else ' is not set'}",
        "CUDA": _devices(),
        "Triton": version("triton") or "not installed",
        "kernels": _kernels(),
        "stock Numba": "yes" if stock.is_on() else "no",
    }
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "numba"))
    python = f"Python {platform.python_version()}, {packages}"
    return "\n".join([first_line(), python, *(f"{name}: {text}" for name, text in lines.items())])


def first_line() -> str:
    """The name and the version of this package."""
    return f"torchssvm {version('torchssvm') or 'is not installed'}"


def version(package: str) -> str:
    """The version of an installed package, empty if it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def processor() -> str:
    """The processor's name, as the system gives it."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def _extras() -> dict[str, list[str]]:
    """The packages of every extra but ``all``; a package for another system is left out."""
    packages, lines = defaultdict[str, list[str]](list), list[str]()
    with suppress(importlib.metadata.PackageNotFoundError):  # the folder is on the path, without an installation
        lines = importlib.metadata.requires("torchssvm") or []
    for line in lines:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        system = re.search(r"platform_system == ['\"](\w+)['\"]", line)
        if extra and extra[1] != "all" and (system is None or system[1] == platform.system()):
            packages[extra[1]] += re.findall(r"^[\w.-]+", line)
    return packages


def _devices() -> str:
    if not torch.cuda.is_available():
        return "none" if torch.version.cuda is None else f"no device for torch's CUDA {torch.version.cuda}"
    names = (torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return f"{torch.version.cuda}, {', '.join(names)}"


def _kernels() -> str:
    try:
        folder = folder_of_kernels()
    except RuntimeError as error:
        return str(error)
    sizes = [file.stat().st_size for file in folder.rglob("*.kernel")]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB, in {folder}"


def main(args: Sequence[str]) -> None:
    """The command line, without its first word."""
    argparse.ArgumentParser("torchssvm info", description="What is installed, and what it runs on.").parse_args(args)
    print(describe_installation())
