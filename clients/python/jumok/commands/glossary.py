"""``jumok glossary``: the glossaries that a server keeps."""

import sys
from pathlib import Path
from typing import Any

import click

from jumok.commands._main import Group
from jumok.commands._options import open_client, server_options, timeout_option
from jumok.commands._output import write_columns
from jumok_proto.errors import GlossaryNotFoundError
from jumok_proto.glossaries import StoredGlossary, write_tsv

with_timeout = timeout_option(60.0, "Seconds to wait for the answer.")
source_option = click.option("--source-language", metavar="TAG", default="", help="Language of the source terms.")
target_option = click.option("--target-language", metavar="TAG", default="", help="Language of the target terms.")


@click.group(cls=Group)
def glossary() -> None:
    """Keep glossaries on a server, for 'jumok translate --glossary NAME'.

    Start the server with --glossaries, a folder. If it needs tokens, each token has its own glossaries.
    """


@glossary.command("create")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@source_option
@target_option
@click.option("--replace", is_flag=True, help="Replace the entries of a stored glossary of this name.")
@server_options
@with_timeout
@click.pass_context
def create_glossary(
    context: click.Context,
    *,
    name: str,
    file: Path,
    source_language: str,
    target_language: str,
    replace: bool,
    server: str,
    timeout_s: float,
) -> None:
    """Store the terms of FILE as NAME: source term, tab, target term in each line; - is standard input.

    Further target terms follow after tabs; a translation contains one of them.
    """
    try:
        data = sys.stdin.buffer.read() if file == Path("-") else file.read_bytes()
        entries = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} cannot be read as UTF-8: {error}") from error
    if all(line.startswith("#") or not line.strip() for line in entries.split("\n")):
        raise click.UsageError(f"{file} has no entries: write a source term, a tab and a target term in each line")
    languages: dict[str, Any] = {"source_language": source_language, "target_language": target_language}
    with open_client(context, server, timeout_s) as client:
        try:
            stored = client.glossaries.update(name, entries, **languages) if replace else None
        except GlossaryNotFoundError:
            stored = None
        _write(stored or client.glossaries.create(name, entries, **languages))


@glossary.command("list")
@server_options
@with_timeout
@click.pass_context
def list_glossaries(context: click.Context, *, server: str, timeout_s: float) -> None:
    """List the glossaries: name, id, and entries for each pair of languages."""
    with open_client(context, server, timeout_s) as client:
        for stored in client.glossaries.list():
            _write(stored)


@glossary.command("show")
@click.argument("name")
@source_option
@target_option
@server_options
@with_timeout
@click.pass_context
def show_glossary(
    context: click.Context, *, name: str, source_language: str, target_language: str, server: str, timeout_s: float
) -> None:
    """Write the entries of the glossary NAME, which may be its id, as lines for 'jumok glossary create'."""
    with open_client(context, server, timeout_s) as client:
        entries = client.glossaries.entries(name, source_language=source_language, target_language=target_language)
    click.echo(write_tsv(entries), nl=False)


@glossary.command("delete")
@click.argument("name")
@server_options
@with_timeout
@click.pass_context
def delete_glossary(context: click.Context, *, name: str, server: str, timeout_s: float) -> None:
    """Delete the glossary NAME, which may be its id."""
    with open_client(context, server, timeout_s) as client:
        write_columns(f"deleted {client.glossaries.delete(name).name}")


def _write(stored: StoredGlossary) -> None:
    pairs = ", ".join(
        f"{one.source_language or 'any'} to {one.target_language or 'any'}: {one.entry_count}"
        for one in stored.dictionaries
    )
    write_columns(stored.name, stored.id, pairs)
