"""``jumok translate-corpus``: translate files of any size, in blocks that survive the end of the process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import click

from jumok import Options
from jumok.commands._options import (
    bundle_settings,
    decoding_options,
    language_options,
    limit_options,
    markup_options,
    open_target,
    sentence_options,
    target_options,
)
from jumok.commands._runners import Runner, make_runner
from jumok.commands._terms import term_options, text_options
from jumok.commands.corpus.inputs import FORMATS, find_sources, is_one_file
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.rows import Columns
from jumok.commands.corpus.run import run_job
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.text_options import splits_sentences

BLOCK_ROWS = 2048


@click.command("translate-corpus")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write, or folder for several files; it appears when all is finished.",
)
@click.option(
    "--format", "format_name", type=click.Choice(FORMATS), help="Format of all files.  [default: by their names]"
)
@click.option("--column", default="text", show_default=True, help="Column to translate.")
@click.option("--out-column", default="translation", show_default=True, help="Column to add, for translations.")
@click.option("--score-column", metavar="NAME", help="Column to add, for the scores of translations.")
@click.option(
    "--block-rows",
    type=click.IntRange(1, 2**20),
    default=BLOCK_ROWS,
    show_default=True,
    help="Rows that are finished, and kept, together.",
)
@target_options
@language_options
@sentence_options
@markup_options
@term_options
@decoding_options
@limit_options
@click.pass_context
def translate_corpus(
    context: click.Context,
    *,
    inputs: tuple[Path, ...],
    out: Path,
    format_name: str | None,
    column: str,
    out_column: str,
    score_column: str | None,
    block_rows: int,
    server: str,
    bundle: Path | None,
    model: str,
    source_language: str | None,
    target_language: str | None,
    split_sentences: bool | None,
    cut_long_sentences: bool | None,
    copy_unreadable: bool,
    markup: MarkupKind | None,
    rules: MarkupRules,
    terms: tuple[str, ...],
    glossary: str | None,
    copied: tuple[str, ...],
    placeholders: tuple[str, ...],
    truncate: bool,
    timeout_s: float,
    **options: Unpack[Options],
) -> None:
    """Translate the rows of files, or of all files in a folder, into files of the same format.

    Reads lines of text, and a column of JSONL or, with the extra corpus, Parquet; text and JSONL also compressed with
    gzip. Rows keep their order and their other columns. A row that cannot be translated has an empty line or null, and
    a reason in OUT.errors.jsonl. After an interruption, even by SIGKILL, the same command goes on from the finished
    blocks, which are in OUT.unfinished until then. Exits with code 1 if no row could be translated.
    """
    columns = Columns(
        text=column,
        translation=out_column,
        score=score_column,
        several=(options.get("num_hypotheses") or 1) > 1,
    )
    if len({column, *columns.added}) <= len(columns.added):
        raise click.UsageError("--column, --out-column and --score-column need different names")
    sources = find_sources(inputs, out, format_name, columns)
    settings: dict[str, Any] = {
        "source_language": source_language,
        "target_language": target_language,
        "truncate": truncate,
        "split_sentences": splits_sentences(split_sentences, attention=False, target_prefix=None, options=options),
        "cut_long_sentences": cut_long_sentences,
        "copy_unreadable": copy_unreadable,
        "markup": markup,
        "markup_rules": rules if markup else None,
        **text_options(terms, glossary, copied, placeholders, local=bundle is not None),
        **options,
    }
    lasting = {
        **{name: value for name, value in settings.items() if value is not None and name != "markup_rules"},
        "markup_rules": repr(rules),
        **bundle_settings(context),
        "model": model,
        "column": column,
        "out_column": out_column,
        "score_column": score_column,
    }
    job = Job(out, [source.name for source in sources], is_file=is_one_file(inputs))

    @contextmanager
    def open_runner() -> Iterator[Runner]:
        with open_target(context, server, bundle) as translator:
            yield make_runner(translator, model=model, timeout_s=timeout_s, **settings)

    if not run_job(job, lasting, sources, open_runner, block_rows=block_rows):
        context.exit(1)
