"""Options for terms: a glossary, and parts of texts that are copied."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from jumok_proto.term_conversion import PLACEHOLDER_KINDS
from jumok_proto.text_options import TextOptions

Command = Callable[..., None]


def term_options(command: Command) -> Command:
    """Add the options for terms to a command, which gets ``terms``, ``glossary``, ``copied`` and ``placeholders``."""
    options = (
        click.option(
            "--term",
            "terms",
            metavar="SOURCE=TARGET",
            multiple=True,
            help="Term and its translation, which texts with the term get; repeatable.",
        ),
        click.option(
            "--glossary",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File of terms: source term, tab, target term in each line.",
        ),
        click.option(
            "--do-not-translate",
            "copied",
            metavar="TEXT",
            multiple=True,
            help="Text that is copied; * stands for letters, digits and _; repeatable.",
        ),
        click.option(
            "--placeholder",
            "placeholders",
            type=click.Choice([*PLACEHOLDER_KINDS]),
            multiple=True,
            help="Kind of placeholders that are copied; repeatable.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def text_options(
    terms: Sequence[str], glossary: Path | None, copied: Sequence[str], placeholders: Sequence[str]
) -> TextOptions:
    """Return the options for texts.

    Raises:
        click.UsageError: a term or the glossary cannot be read.
    """
    entries = dict[str, tuple[str, ...]]()
    if glossary is not None:
        try:
            lines = glossary.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--glossary {glossary} cannot be read as UTF-8: {error}") from error
        entries = read_tsv(lines, str(glossary))
    for term in terms:
        source, equals, target = term.partition("=")
        if not equals or not source.strip() or not target.strip():
            raise click.UsageError(f"--term {term!r} needs a term, = and its translation")
        _add(entries, source, [target])
    given: dict[str, Any] = {"glossary": entries, "do_not_translate": copied, "placeholders": placeholders}
    found: TextOptions = {}
    found.update({name: value for name, value in given.items() if value})  # type: ignore[typeddict-item]
    return found


def read_tsv(lines: Sequence[str], name: str) -> dict[str, tuple[str, ...]]:
    """Read entries of a glossary: source term, tab, target term; more target terms follow after tabs.

    Empty lines, and lines that begin with #, are left out. Lines with one source term become one entry.

    Raises:
        click.UsageError: a line has no target term, or an empty one.
    """
    entries = dict[str, tuple[str, ...]]()
    rows = csv.reader((line.rstrip("\r\n") for line in lines), delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in enumerate(rows, start=1):
        if not any(map(str.strip, row)) or row[0].startswith("#"):
            continue
        if len(row) < 2 or not all(map(str.strip, row)):
            raise click.UsageError(f"{name}:{number}: a line needs a source term, a tab and a target term")
        _add(entries, row[0], row[1:])
    return entries


def _add(entries: dict[str, tuple[str, ...]], source: str, targets: Sequence[str]) -> None:
    known = entries.get(source.strip(), ())
    entries[source.strip()] = tuple(dict.fromkeys((*known, *map(str.strip, targets))))
