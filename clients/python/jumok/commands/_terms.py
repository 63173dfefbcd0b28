"""Options for terms: a glossary, and parts of texts that are copied."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from jumok_proto.glossaries.tsv import read_tsv
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
            metavar="FILE|NAME",
            help="File of terms, with a source term, a tab and a target term in each line; or the name of a glossary "
            "that the server keeps.",
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
    terms: Sequence[str], glossary: str | None, copied: Sequence[str], placeholders: Sequence[str], *, local: bool
) -> TextOptions:
    """Return the options for texts.

    Args:
        glossary: a file, or the name of a stored glossary.
        local: True without a server, which keeps glossaries.

    Raises:
        click.UsageError: a term or the glossary cannot be read.
    """
    entries = dict[str, tuple[str, ...]]()
    stored = None
    if glossary is not None and Path(glossary).is_file():
        entries = _read(Path(glossary))
    elif glossary is not None and (local or glossary != Path(glossary).name):
        raise click.UsageError(f"--glossary {glossary}: no such file; servers alone keep glossaries by name")
    else:
        stored = glossary
    for term in terms:
        source, equals, target = map(str.strip, term.partition("="))
        if not equals or not source or not target:
            raise click.UsageError(f"--term {term!r} needs a term, = and its translation")
        entries[source] = tuple(dict.fromkeys((*entries.get(source, ()), target)))
    given: dict[str, Any] = {
        "glossary": entries,
        "stored_glossary": stored,
        "do_not_translate": copied,
        "placeholders": placeholders,
    }
    found: TextOptions = {}
    found.update({name: value for name, value in given.items() if value})  # type: ignore[typeddict-item]
    return found


def _read(file: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {line.source: line.targets for line in read_tsv(file.read_text(encoding="utf-8"))}
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--glossary {file} cannot be read as UTF-8: {error}") from error
    except ValueError as error:
        raise click.UsageError(f"--glossary {file}: {error}") from error
