"""``jumok translate-file``: translate a file of texts."""

import sys
from pathlib import Path
from typing import Any

import click

from jumok.commands._options import (
    language_options,
    long_sentence_options,
    model_option,
    open_client,
    server_options,
    term_options,
    timeout_option,
)
from jumok.commands._output import LongTexts
from jumok_proto.file_formats import FILE_FORMATS
from jumok_proto.flags import decoding_flags

DASH = Path("-")
*_FORMATS, _LAST_FORMAT = FILE_FORMATS


@click.command("translate-file")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    required=True,
    help="File to write; it changes only once all is written. - is standard output.",
)
@click.option(
    "--format",
    "file_format",
    default="",
    metavar="NAME",
    help=f"Format of the file: {', '.join(_FORMATS)} or {_LAST_FORMAT}.  [default: by the end of its name]",
)
@server_options
@model_option
@language_options
@long_sentence_options
@term_options
@decoding_flags
@click.option("--truncate", is_flag=True, help="Leave out the ends of sentences that are too long for the model.")
@click.option(
    "--document-properties", is_flag=True, help="Translate title, subject, description, keywords and category too."
)
@timeout_option(None, "Seconds that the file may take.")
@click.pass_context
def translate_file(
    context: click.Context,
    /,
    *,
    file: Path,
    out: Path,
    server: str,
    **settings: Any,
) -> None:
    """Translate the texts of FILE; all else in it stays as it is. - is standard input.

    A text that cannot be translated stays as it is and gives a reason on standard error, and exit code 1. With
    --source-language auto, the language of each text is detected.
    """
    if sys.stderr.isatty() and out != DASH:
        settings["on_progress"] = _show
    with open_client(context, server) as client:
        result = client.translate_file(
            sys.stdin.buffer if file == DASH else file, sys.stdout.buffer if out == DASH else out, **settings
        )
    LongTexts(result.cut_sentence_count, result.truncated_count).warn(str(file))
    for problem in result.problems:
        part = f"{problem.part}:" if problem.part else ""
        click.echo(f"Error: {file}:{part}{problem.line}: {problem.error}", err=True)
    if result.problems:
        context.exit(1)


def _show(done: int, count: int) -> None:
    """Show progress on standard error."""
    click.echo(f"\rtranslated {done} of {count} texts" + ("\n" if done == count else ""), err=True, nl=False)
