"""The command ``torchssvm``: runs from a configuration file, taggers of files, and kernels compiled ahead."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torchssvm.core.arguments import needs

TASKS = {
    "train": "train a tagger on a file of tokens",
    "tag": "tag the tokens of a file",
    "eval": "measure a tagger by a file",
    "warm": "compile kernels ahead",
    "info": "say what is installed, and what it runs on",
}
"""The commands that need no Lightning, and what they do."""

FITTING = ("fit", "validate", "test", "predict")
"""Lightning's, which read a configuration file."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line, ``torchssvm fit --config examples/ocr.yaml`` for instance; ``args`` replace the process's.

    The model is :class:`torchssvm.lightning.StructuredSVM`; the data are ``OCRData`` unless ``--data`` names another
    ``LightningDataModule``; all options of the ``Trainer`` are options here. ImportError: Lightning or jsonargparse is
    missing.

    ``torchssvm warm`` compiles kernels, see :func:`torchssvm.warm.main`; ``torchssvm train``, ``tag`` and ``eval`` are
    for files of tokens, see :mod:`torchssvm.tag_files`; ``torchssvm info`` says what is installed. They need neither.
    """
    args = sys.argv[1:] if args is None else list(args)
    if args[:1] in (["train"], ["tag"], ["eval"]):
        from torchssvm import tag_files

        return tag_files.main(args)
    if args[:1] == ["warm"]:
        from torchssvm import warm

        return warm.main(args[1:])
    if args == ["--version"] or args[:1] == ["info"]:
        from torchssvm import info

        return print(info.first_line()) if args == ["--version"] else info.main(args[1:])
    if args in (["-h"], ["--help"]):
        return print(_commands())
    if not args or not (args[0].startswith("-") or args[0] in FITTING):
        print(f"torchssvm: {args[0]!r} is no command\n" if args else "torchssvm: give a command\n", file=sys.stderr)
        print(_commands(), file=sys.stderr)
        sys.exit(2)
    with needs("the command line needs Lightning: pip install 'torchssvm[lightning]'", "lightning", "jsonargparse"):
        import jsonargparse  # noqa: F401
        import lightning as L
        from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
    from torchssvm.lightning.structured_svm import StructuredSVM

    class CLI(LightningCLI):
        """Lightning's command line with a default dataset."""

        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            """Train on the words that come with the package if nothing else is said."""
            parser.set_defaults({"data": {"class_path": "torchssvm.datasets.OCRData"}})

    CLI(
        StructuredSVM,
        L.LightningDataModule,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
        save_config_kwargs={"overwrite": True},
        args=args,
    )


def _commands() -> str:
    """All commands, a line each."""
    lines = [f"  {name:<6} {what}" for name, what in TASKS.items()]
    fitting = f"  {', '.join(FITTING)}: run a StructuredSVM by a configuration file, with Lightning"
    return "\n".join(["usage: torchssvm COMMAND ...", "", *lines, fitting, "", "torchssvm COMMAND --help says more."])


if __name__ == "__main__":
    main()
