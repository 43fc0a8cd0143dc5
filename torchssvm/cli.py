"""The command ``torchssvm``: fit, validate, test and predict from a configuration file."""

from __future__ import annotations

from typing import Any


def main(args: Any = None) -> Any:
    """Run the command line, ``torchssvm fit --config examples/ocr.yaml`` for instance.

    The model is :class:`torchssvm.lightning.StructuredSVM` unless ``--model.class_path`` names another; data is any
    ``LightningDataModule`` by ``--data``. All options of the ``Trainer`` are options here.

    Args:
        args: Arguments in place of those of the process; a list of strings.

    Raises:
        ImportError: Lightning or jsonargparse is missing.
    """
    try:
        import jsonargparse  # noqa: F401
        import lightning as L
        from lightning.pytorch.cli import LightningCLI
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("lightning", "jsonargparse"):
            raise
        raise ImportError("the command line needs Lightning: pip install 'torchssvm[lightning]'") from error
    from torchssvm.lightning import StructuredSVM

    return LightningCLI(
        StructuredSVM,
        L.LightningDataModule,
        subclass_mode_data=True,
        args=args,
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
    )


if __name__ == "__main__":
    main()
