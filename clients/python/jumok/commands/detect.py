"""``jumok detect``: detect the languages of texts."""

from pathlib import Path

import click

from jumok.commands._line_requests import InputError, answer_lines, open_texts
from jumok.commands._options import file_options, open_client, server_options, timeout_option
from jumok.commands._output import open_output, progress, write_line

UNKNOWN = "und"
"""Language of a text without letters, as BCP 47 has it."""


@click.command()
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@file_options
@server_options
@timeout_option(60.0, "Seconds that one request may take; long input is sent in many.")
@click.pass_context
def detect(
    context: click.Context,
    *,
    texts: tuple[str, ...],
    source: Path | None,
    output: Path | None,
    server: str,
    timeout_s: float,
) -> None:
    """Detect the languages of TEXTs, or of the lines of a file or of standard input, in UTF-8.

    Writes one line for each text: the language, a tab, and the confidence among all languages that the server knows,
    0 to 1. A text without letters has the language und (undetermined).
    """
    descriptor, lines = open_texts(texts, source)
    with (
        open_client(context, server, timeout_s) as client,
        open_output(output) as out,
        progress(descriptor, "detecting", out) as advance,
    ):
        for line, languages in answer_lines(lines, client.detect_language, retry_s=timeout_s, until_error=True):
            if isinstance(languages, InputError):
                raise languages
            language, confidence = languages[0] if languages else (UNKNOWN, 0.0)
            write_line(f"{language}\t{confidence:.2f}", out)
            out.flush()
            advance(line)
