"""The command line: sub-commands of all packages, one-line failures, exit codes."""

import ast
import errno
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem, shell_complete

from jumok_proto import __version__
from jumok_proto.errors import JumokError

COMMANDS = "jumok.commands"
INTERRUPTED = 130
"""Exit code after Ctrl-C."""

_EXTRAS = {
    "jumok_serve": "serve",
    "jumok_export": "serve,export",
    "filelock": "serve,import",
    "grpc_health": "cli",
    "huggingface_hub": "serve,import",
    "lightning": "serve,export",
    "matplotlib": "plot",
    "onnx": "serve,export",
    "onnxruntime": "serve",
    "onnxscript": "serve,export",
    "opentelemetry": "serve,otel",
    "pyarrow": "corpus",
    "sacrebleu": "serve,evaluate",
    "sacremoses": "serve,moses",
    "safetensors": "serve,import",
    "starlette": "serve,http",
    "uvicorn": "serve,http",
    "torch": "serve,export",
    "transformers": "serve,import",
}
"""Extras to install, by the package that is missing."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors of writes that find no room."""
_EXTRAS_OF_COMMANDS = {
    "import": "serve,import",
    **dict.fromkeys(("add-native", "ensemble", "export", "train"), "serve,export"),
}
"""Extras of commands that need one for all of their packages."""
MOST_SHORT_HELP = 1000
"""Most characters of a command's description in a list of commands."""
COMPLETION = "_JUMOK_COMPLETE"
"""Variable by which a shell asks for completions, as click names it."""


class Group(click.Group):
    """Sub-commands whose help has their first sentences as a whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sub-commands; click cuts their descriptions off at the end of the line."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(limit=MOST_SHORT_HELP))
            for name, command in found
            if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Commands(Group):
    """Sub-commands by entry point, imported when they are called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List all commands, including commands whose extra is missing."""
        return sorted(entry_points(group=COMMANDS).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; if that fails, return one that reports the reason."""
        found = list(entry_points(group=COMMANDS, name=cmd_name))
        if not found:
            return None
        try:
            command = found[0].load()
        except ImportError as error:
            return _unavailable(found[0], missing(error, found[0]))
        except AttributeError:  # an editable installation whose sources have changed
            return _unavailable(found[0], "is of another version of jumok: install jumok again")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments; suggests the nearest name for an unknown one."""
        known = self.list_commands(ctx)
        similar = [] if args[0] in known else get_close_matches(args[0], known, n=1)
        if similar:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {similar[0]!r}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing them."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; if it needs a package of an extra that is missing, name the extra."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRAS:
                raise
            (called,) = entry_points(group=COMMANDS, name=ctx.invoked_subcommand or "")
            raise click.ClickException(f"this {missing(error, called)}") from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jumok")
def jumok() -> None:
    """Train, export, serve and use neural machine translation.

    'jumok serve BUNDLE' serves a bundle, which is the folder of an exported or imported model. 'jumok translate TEXT'
    then translates through that server, and with --bundle BUNDLE without one.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    The codes are 0, 1 (failure), 2 (usage), 130 (Ctrl-C) and 141 (broken pipe).
    """
    wanted = os.environ.get(COMPLETION)
    if wanted:
        return shell_complete(jumok, {}, "jumok", COMPLETION, wanted)
    try:
        with jumok.make_context("jumok", list(arguments)) as context:
            jumok.invoke(context)
        sys.stdout.flush()
    except BaseException as error:
        return _report(error)
    return 0


def _report(error: BaseException) -> int:
    """Report a failure in one line, a bug with traceback; returns the exit code."""
    code = 1
    match error:
        case click.exceptions.Exit():
            code = error.exit_code
        case click.ClickException():
            error.show()
            code = error.exit_code
        case KeyboardInterrupt() | click.Abort():
            code = INTERRUPTED
        case BrokenPipeError():
            # Python flushes standard output again at exit, and would report the broken pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 141
        case OSError() if error.errno in _FULL:
            click.echo(f"Error: the output cannot be written: {error.strerror}; make room, or choose another", err=True)
        case OSError() if error.filename is not None and error.strerror:
            click.echo(f"Error: {os.fsdecode(error.filename)}: {error.strerror}", err=True)
        case JumokError() | OSError():
            click.echo(f"Error: {error}", err=True)
        case _:
            raise error
    return code


def missing(error: ImportError, entry_point: EntryPoint) -> str:
    """Describe a missing package and the extra to install."""
    package = (error.name or "").partition(".")[0]
    owner = entry_point.module.partition(".")[0]
    extra = _EXTRAS_OF_COMMANDS.get(entry_point.name) or _EXTRAS.get(package) or _EXTRAS.get(owner)
    if not isinstance(error, ModuleNotFoundError) or extra is None:
        return f"cannot be loaded: {error}"
    return f"needs {package}, which is not installed; install it with: pip install 'jumok[{extra}]'"


def _unavailable(entry_point: EntryPoint, reason: str) -> click.Command:
    """Make a stand-in for a command that cannot be imported.

    Its help describes the command, and gives the reason as its failure does.
    """
    name = entry_point.name

    def fail(_arguments: tuple[str, ...]) -> NoReturn:
        raise click.ClickException(f"'jumok {name}' {reason}")

    return click.Command(
        name,
        callback=fail,
        params=[click.Argument(["_arguments"], metavar="...", nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        help=f"{_description(entry_point)}\n\nIts options are not listed, because it {reason}",
    )


def _description(entry_point: EntryPoint) -> str:
    """Read the docstring of a command in its source, because the module cannot be imported."""
    package, _, inner = entry_point.module.partition(".")
    found = find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    for source in (Path(folder, *inner.split(".")).with_suffix(".py") for folder in folders):
        for node in ast.parse(source.read_bytes()).body if source.is_file() else ():
            if isinstance(node, ast.FunctionDef) and node.name == entry_point.attr:
                return ast.get_docstring(node) or ""
    return ""
