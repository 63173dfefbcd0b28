"""``jumok translate``: translate arguments or standard input, through a server or a bundle."""

import os.path
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from jumok import Options, Translation
from jumok.commands._line_requests import InputError, Line, make_runner, open_document, open_lines, open_texts
from jumok.commands._options import (
    file_options,
    language_options,
    limit_options,
    markup_options,
    open_target,
    sentence_options,
    target_options,
    term_options,
)
from jumok.commands._output import (
    Warnings,
    as_json,
    json_error,
    n_best,
    one_line,
    open_output,
    progress,
    warn,
    warn_cut,
    write_line,
    write_text,
)
from jumok_proto.flags import decoding_flag, decoding_flags
from jumok_proto.markup import MarkupKind
from jumok_proto.text_options import splits_sentences

_SENTENCES = re.compile(
    # After a word that is no initial or title: punctuation, space, and no small letter.
    r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.!?…][\"'»”)\]]*\s+(?=[\"'«“(\[]*[^\W\d_a-zß-ÿ])"
    r"|[。！？｡][」』）”]*\s*(?=\w)"  # noqa: RUF001
)
"""The end of a sentence, and the beginning of another."""
SHOWN = 80
"""Characters of a sentence in a warning."""


@click.command()
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@file_options
@target_options
@language_options
@sentence_options
@markup_options
@term_options
@click.option("--target-prefix", metavar="TEXT", help="Beginning of each translation.")
@decoding_flag("num_hypotheses")
@decoding_flags
@limit_options
@click.option("--json", "json_lines", is_flag=True, help="Write one JSON object per line, with scores and tokens.")
@click.option(
    "--attention", is_flag=True, help="With --json, write the attention from each token to those of the text."
)
@click.pass_context
def translate(
    context: click.Context,
    /,
    *,
    texts: tuple[str, ...],
    source: Path | None,
    output: Path | None,
    server: str,
    bundle: Path | None,
    model: str,
    split_sentences: bool | None,
    markup: MarkupKind | None,
    target_prefix: str | None,
    timeout_s: float,
    json_lines: bool,
    attention: bool,
    **settings: Any,
) -> None:
    """Translate TEXTs, or the lines of a file or of standard input, in UTF-8.

    Writes one line for each text, in order and as soon as possible. A text that cannot be translated gives an empty
    line, a reason on standard error and exit code 1. With --num-hypotheses above 1, writes one line for each
    translation: number of the text, rank, score and translation, separated by tabs. With --markup, a file or standard
    input is one document. With --source-language auto, the language of each text is detected. Other options default to
    the model's.
    """
    if attention and not json_lines:
        raise click.UsageError("--attention needs --json: plain lines cannot hold it")
    descriptor, lines = open_texts(texts, source, open_lines if markup is None else open_document)
    _warn_of_texts(texts)
    options = cast("Options", settings)
    splits = splits_sentences(split_sentences, attention=attention, target_prefix=target_prefix, options=options)
    settings |= {"attention": attention, "split_sentences": splits, "markup": markup}
    several = (options.get("num_hypotheses") or 1) > 1
    warnings = Warnings()
    failed = False
    with (
        open_target(context, server, bundle) as translator,
        open_output(output) as out,
        progress(descriptor, "translating", out) as advance,
    ):
        run = make_runner(translator, model=model, timeout_s=timeout_s, target_prefix=target_prefix, **settings)
        for number, (line, outcome) in enumerate(run(lines), start=1):
            if isinstance(outcome, InputError):
                failed = True
                click.echo(f"Error: {outcome}", err=True)
                if json_lines or not several:
                    write_line(json_error(outcome, line) if json_lines else _end(line), out)
            else:
                if outcome.source_truncated:
                    warn_cut(line.name, outcome.source_token_count)
                for sentence in outcome.cut_sentences:
                    shown = sentence if len(sentence) <= SHOWN else f"{sentence[:SHOWN]}..."
                    warn(f"{line.name}: too long for the model, cut into parts: {shown}")
                _warn(warnings, line, outcome, prefix=target_prefix, whole=not (splits or markup), several=several)
                write_text(_written(outcome, line, number, json_lines=json_lines, several=several), out)
            out.flush()
            advance(line)
    if failed:
        context.exit(1)


def _warn(
    warnings: Warnings, line: Line, translation: Translation, *, prefix: str | None, whole: bool, several: bool
) -> None:
    """Warn of reasons to doubt a translation.

    Args:
        whole: True if the text was translated as one sentence.
        several: True for several hypotheses, which a text that is split into sentences cannot have.
    """
    warnings.unknown_source(line.name, translation.source_unknown_count, translation.source_token_count)
    warnings.missing_terms(line.name, translation)
    warnings.unclear_language(line.name, translation)
    if translation.prefix_unknown_count:
        tokens = translation.prefix_unknown_count
        warnings.once(
            "prefix", f"{line.name}: the target prefix {prefix!r} has tokens that are unknown to the model: {tokens}"
        )
    if whole and _SENTENCES.search(line.text):
        warnings.once(
            "sentences",
            f"{line.name} seems to have several sentences, and the model translates one at a time: "
            + ("give each sentence as a text of its own" if several else "use --split-sentences"),
        )


def _written(translation: Translation, line: Line, number: int, *, json_lines: bool, several: bool) -> str:
    if json_lines:
        return as_json(translation, line.text) + "\n"
    if line.is_document:
        return translation.text
    return (n_best(translation, number) if several else one_line(translation.text) + _end(line)) + "\n"


def _end(line: Line) -> str:
    """Return the carriage return of a line, if it has one."""
    return "\r" if line.carriage_return else ""


def _warn_of_texts(texts: Sequence[str]) -> None:
    """Warn of texts that seem to be words, or names of files."""
    if len(texts) > 1 and not any(" " in text for text in texts):
        warn(f"{len(texts)} words are {len(texts)} texts; a sentence needs quotation marks around it")
    for number, text in enumerate(texts, start=1):
        if os.path.isfile(text):
            warn(f"text {number} is the name of a file; to translate its lines: --input {text}")
