"""`python -m torchcaps` is the command line."""

from torchcaps.cli import main

if __name__ == "__main__":
    main()
