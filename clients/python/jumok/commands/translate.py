"""``jumok translate``: arguments or lines of standard input, through a server or a bundle."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import click

from jumok import Client, Options, Translation
from jumok.commands._options import decoding_options, language_options, limit_options, open_place, place_options
from jumok.commands._output import as_json, n_best, plain, progress, write_line
from jumok.commands._pipeline import Line, answer_lines, read_lines

STDIN = 0


@click.command()
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@place_options
@language_options
@click.option("--target-prefix", metavar="TEXT", help="What every translation begins with.")
@decoding_options
@limit_options
@click.option("--json", "json_lines", is_flag=True, help="Write one JSON object a line, with scores and tokens.")
@click.option("--attention", is_flag=True, help="With --json, write the attention from each token to the text's.")
@click.pass_context
def translate(
    context: click.Context,
    *,
    texts: tuple[str, ...],
    server: str,
    bundle: Path | None,
    model: str,
    source_language: str | None,
    target_language: str | None,
    target_prefix: str | None,
    truncate: bool,
    timeout_s: float,
    json_lines: bool,
    attention: bool,
    **options: Unpack[Options],
) -> None:
    """Translate TEXTs, or else the lines of standard input, which must be UTF-8.

    Writes one line for every text, in order and as soon as it is known. With --num-hypotheses above 1, writes a line
    for every candidate instead: number of the text, rank, score and translation, separated by tabs. Options that are
    not given keep the model's defaults.
    """
    if attention and not json_lines:
        raise click.UsageError("--attention needs --json: there is no room for it in plain lines")
    source = None if texts else STDIN
    lines = _arguments(texts) if source is None else read_lines(open(source, "rb", closefd=False))  # noqa: SIM115
    with open_place(context, server, bundle) as translator, progress(source, "translating") as advance:
        translate_texts = partial(
            translator.translate,
            source_language=source_language,
            target_language=target_language,
            attention=attention,
            truncate=truncate,
            timeout_s=timeout_s,
            **options,
        )
        if isinstance(translator, Client):
            translate_texts = partial(translate_texts, model=model)

        def ask(contents: list[str]) -> list[Translation]:
            prefixes = None if target_prefix is None else [target_prefix] * len(contents)
            return translate_texts(contents, target_prefix=prefixes)

        number = 0
        for batch in answer_lines(lines, ask, patience_s=timeout_s):
            for line, translation in zip(batch.lines, batch.answers, strict=True):
                number += 1
                if translation.source_truncated:
                    kept = translation.source_token_count
                    click.echo(f"Warning: {line.name}: too long for the model, cut to {kept} tokens", err=True)
                write_line(_written(translation, line, number, json_lines, options.get("num_hypotheses")))
            sys.stdout.flush()
            advance(batch.lines)


def _written(translation: Translation, line: Line, number: int, json_lines: bool, num_hypotheses: int | None) -> str:
    if json_lines:
        return as_json(translation, line.text)
    return plain(translation) if (num_hypotheses or 1) == 1 else n_best(translation, number)


def _arguments(texts: Sequence[str]) -> Iterator[Line]:
    for number, text in enumerate(texts, start=1):
        yield Line(text, f"text {number}", len(text))
