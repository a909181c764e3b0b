"""The verbs of the command, one a file: plain functions whose annotations Typer reads."""
