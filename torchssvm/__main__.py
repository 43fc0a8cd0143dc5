"""``python -m torchssvm`` is the command ``torchssvm``."""

from torchssvm.cli import main

if __name__ == "__main__":
    main()
