"""The packages by name: ``models/`` and ``datasets/`` are installed under ``torchssvm``, which no finder sees."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["torchssvm", "torchssvm.*"]),
        *(f"torchssvm.{name}" for name in find_packages(include=["models", "models.*", "datasets", "datasets.*"])),
    ]
)
