"""The command from its first import on: ``python -m convlab``."""

from convlab.commands.interrupts import end_at_once


def main() -> None:
    """The console entry point."""
    end_at_once()
    from convlab.commands import cli

    cli.main()


if __name__ == "__main__":
    main()
