"""Options for terms: a glossary, and parts of texts that are copied."""

from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from jumok.commands._options import Command, all_of, repeatable_option
from jumok_proto.glossaries.tsv import read_tsv
from jumok_proto.term_conversion import PLACEHOLDER_KINDS


def term_options(command: Command) -> Command:
    """Add the options for terms to a command, which gets those given as parameters, named as in ``TermOptions``."""

    @wraps(command)
    def with_terms(
        *arguments: Any,
        terms: tuple[str, ...],
        glossary: str | None,
        do_not_translate: tuple[str, ...],
        placeholders: tuple[str, ...],
        **others: Any,
    ) -> None:
        entries, stored = _entries(terms, glossary, local=others.get("bundle") is not None)
        found = {
            "glossary": entries,
            "stored_glossary": stored,
            "do_not_translate": do_not_translate,
            "placeholders": placeholders,
        }
        command(*arguments, **{name: value for name, value in found.items() if value}, **others)

    return all_of(
        repeatable_option("--term", "Term and its translation, which texts with the term get", metavar="SOURCE=TARGET"),
        click.option(
            "--glossary",
            metavar="FILE|NAME",
            help="File of terms, with a source term, a tab and a target term in each line; or the name of a glossary "
            "that the server keeps.",
        ),
        click.option(
            "--do-not-translate",
            metavar="TEXT",
            multiple=True,
            help="Text that is copied; * stands for letters, digits and _; repeatable.",
        ),
        repeatable_option(
            "--placeholder", "Kind of placeholders that are copied", type=click.Choice([*PLACEHOLDER_KINDS])
        ),
    )(with_terms)


def _entries(
    terms: Sequence[str], glossary: str | None, *, local: bool
) -> tuple[dict[str, tuple[str, ...]], str | None]:
    """Return the target terms by source term, and the name of a stored glossary.

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
    return entries, stored


def _read(file: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {line.source: line.targets for line in read_tsv(file.read_text(encoding="utf-8"))}
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--glossary {file} cannot be read as UTF-8: {error}") from error
    except ValueError as error:
        raise click.UsageError(f"--glossary {file}: {error}") from error
