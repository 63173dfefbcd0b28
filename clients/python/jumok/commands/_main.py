"""The command line: finds the sub-commands of all rooms, and turns failures into one line and an exit code."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

import click

from jumok_proto import __version__
from jumok_proto.errors import JumokError

COMMANDS = "jumok.commands"

_EXTRAS = {
    "jumok_serve": "serve",
    "jumok_export": "serve,export",
    "grpc_health": "cli",
    "matplotlib": "plot",
    "opentelemetry": "serve,otel",
    "sacrebleu": "serve,evaluate",
    "safetensors": "serve,import-hf",
    "transformers": "serve,import-hf",
}
"""What to install where a room, or a single package that only some installations have, cannot be imported."""


class Commands(click.Group):
    """Sub-commands by entry point: a room is imported when its command is called or the help lists it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name all commands of all rooms, installed with their extras or not."""
        return sorted(entry_points(group=COMMANDS).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; where that fails, give one that says why."""
        found = list(entry_points(group=COMMANDS, name=cmd_name))
        if not found:
            return None
        try:
            command = found[0].load()
        except ImportError as error:
            return _unavailable(cmd_name, missing(error, found[0]))
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jumok")
def jumok() -> None:
    """Train, export, serve and use neural machine translation."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line; give its exit code: 0, 1 (it failed), 2 (wrongly called), 130 (Ctrl-C), 141 (broken pipe)."""
    try:
        with jumok.make_context("jumok", list(arguments)) as context:
            jumok.invoke(context)
        sys.stdout.flush()
    except BaseException as error:
        return _report(error)
    return 0


def _report(error: BaseException) -> int:
    """Tell of a failure in one line, and give its exit code; a fault of the program itself keeps its traceback."""
    code = 1
    match error:
        case click.exceptions.Exit():
            code = error.exit_code
        case click.ClickException():
            error.show()
            code = error.exit_code
        case KeyboardInterrupt() | click.Abort():
            code = 130
        case BrokenPipeError():
            # Python flushes standard output once more at its end, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 141
        case JumokError() | OSError():
            click.echo(f"Error: {error}", err=True)
        case ModuleNotFoundError() if (error.name or "").partition(".")[0] in _EXTRAS:
            click.echo(f"Error: this {missing(error)}", err=True)
        case _:
            raise error
    return code


def missing(error: ImportError, entry_point: EntryPoint | None = None) -> str:
    """Say what to install, by the package that is not there or else by the room that needs it."""
    package = (error.name or "").partition(".")[0]
    room = entry_point.module.partition(".")[0] if entry_point else ""
    extra = _EXTRAS.get(package) or _EXTRAS.get(room)
    if not isinstance(error, ModuleNotFoundError) or extra is None:
        return f"cannot be loaded: {error}"
    return f"needs {package}, which is not installed; install it with: pip install 'jumok[{extra}]'"


def _unavailable(name: str, reason: str) -> click.Command:
    """Stand in for a command that cannot be imported: listed with the reason, and failing with it when called."""

    def fail(_arguments: tuple[str, ...]) -> NoReturn:
        raise click.ClickException(f"'jumok {name}' {reason}")

    return click.Command(
        name,
        callback=fail,
        params=[click.Argument(["_arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        help=f"({reason})",
        short_help=f"({reason})",
    )
