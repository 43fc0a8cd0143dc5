"""The packages by name: ``models/src`` and ``datasets/src`` are installed under ``torchssvm``, which no finder sees."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["torchssvm", "torchssvm.*"]),
        *(
            ".".join(["torchssvm", folder, *package])
            for folder in ("models", "datasets")
            for package in [[], *([name] for name in find_packages(f"{folder}/src"))]
        ),
    ]
)
