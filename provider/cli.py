"""`darkbloom-py`: a table of commands, each imported only when it is called.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import importlib
import logging
import signal
import sys
from dataclasses import dataclass
from typing import Any

import typer

from provider.errors import DarkbloomError


@dataclass(frozen=True, slots=True)
class Entry:
    """`target`: the attribute of `module` that is the command, a function or a typer.Typer of subcommands."""

    module: str
    target: str
    help: str


COMMANDS = {
    "up": Entry("provider.up", "up", "Run the whole system on this machine: Postgres, coordinator, provider."),
    "local": Entry("provider.local", "local", "Serve models on this machine, without a coordinator."),
    "provider": Entry("provider.start", "app", "Join this machine to a fleet."),
    "coordinator": Entry("coordinator.cli", "app", "Run a fleet's endpoint, and manage its tokens."),
    "fleet": Entry("provider.simulate.command", "app", "Simulate a fleet, for load tests and for planning."),
    "models": Entry("provider.models.commands", "app", "What is on disk, what a checkpoint is, and fetching one."),
    "doctor": Entry("provider.doctor", "doctor", "Diagnose this machine."),
    "bench": Entry("provider.bench.cli", "app", "Measure a server."),
}


def application(arguments: list[str]) -> typer.Typer:
    """The command line with the called command imported and the others as names with a help text."""
    app = typer.Typer(
        name="darkbloom-py",
        help="Serves Qwen-family models on Macs, GPUs and CPUs, alone or as a fleet.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback(invoke_without_command=True)(_version)
    called = next((one for one in arguments if not one.startswith("-")), None)
    for name, entry in COMMANDS.items():
        if name != called:
            app.command(name, help=entry.help)(_placeholder)
            continue
        target: Any = getattr(importlib.import_module(entry.module), entry.target)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, help=entry.help)
        else:
            app.command(name)(target)
    return app


def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("darkbloom-py"))
        raise typer.Exit


def _placeholder() -> None:
    """Stands for a command that was not called."""


def log_to_stderr(level: int = logging.INFO) -> None:
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)


def main() -> None:
    try:
        application(sys.argv[1:])()
    except DarkbloomError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        # Before a command has taken over its signals.
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
