"""The command from its first import on: ``python -m convlab``."""

from convlab.interrupts import importing


def main() -> None:
    """The console entry point."""
    with importing():
        from convlab import cli
    cli.main()


if __name__ == "__main__":
    main()
