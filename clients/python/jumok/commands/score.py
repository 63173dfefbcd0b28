"""``jumok score``: score translations, from arguments or standard input."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from jumok import Client, Score
from jumok.commands._line_requests import InputError, Line, answer_lines, open_lines
from jumok.commands._options import file_options, language_options, limit_options, open_target, target_options
from jumok.commands._output import Warnings, json_line, open_output, progress, warn_cut, write_line
from jumok_proto.flags import decoding_flag

SCORE_FIELDS = (
    *("score", "tokens", "token_ids", "token_scores", "source_token_count", "source_truncated"),
    *("source_unknown_count", "target_unknown_count", "model", "model_version"),
)
"""Fields of a score in JSON, in their order."""


@click.command()
@click.argument("pair", metavar="[SOURCE TARGET]", nargs=-1)
@file_options
@target_options
@language_options
@decoding_flag("length_penalty")
@limit_options
@click.option(
    "--json", "json_lines", is_flag=True, help="Write one JSON object per line, with tokens and their scores."
)
@click.pass_context
def score(
    context: click.Context,
    /,
    *,
    pair: tuple[str, ...],
    source: Path | None,
    output: Path | None,
    server: str,
    bundle: Path | None,
    model: str,
    timeout_s: float,
    json_lines: bool,
    **settings: Any,
) -> None:
    """Score TARGET as a translation of SOURCE, or lines of a file or standard input: source, tab, target; in UTF-8.

    Writes one score for each pair, in order and as soon as possible: the sum of the log-probabilities of the target's
    tokens and its end, divided by their number to the power of the length penalty. Higher is better.
    """
    if len(pair) not in {0, 2}:
        got = f"{len(pair)} argument{'s' if len(pair) > 1 else ''}"
        raise click.UsageError(f"give SOURCE and TARGET, or nothing for standard input; got {got}")
    if pair and source is not None:
        raise click.UsageError(f"give SOURCE and TARGET, or --input {source}, not both")
    settings["timeout_s"] = timeout_s
    warnings = Warnings()
    with open_target(context, server, bundle) as scorer, open_output(output) as out:
        if isinstance(scorer, Client):
            settings["model"] = model

        def score_pairs(pairs: list[str]) -> list[Score]:
            sources, targets = zip(*(text.partition("\t")[::2] for text in pairs), strict=True)
            return scorer.score(sources, targets, **settings)

        if pair:
            (scored,) = scorer.score([pair[0]], [pair[1]], **settings)
            _write(scored, out, *pair, name="the text", warnings=warnings, json_lines=json_lines)
            return
        descriptor, lines = open_lines(source)
        with progress(descriptor, "scoring", out) as advance:
            for line, answer in answer_lines(_pairs(lines), score_pairs, retry_s=timeout_s, until_error=True):
                if isinstance(answer, InputError):
                    raise answer
                source_text, target = line.text.split("\t")
                _write(answer, out, source_text, target, name=line.name, warnings=warnings, json_lines=json_lines)
                out.flush()
                advance(line)


def _pairs(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines; those that are no pairs have a ``problem``."""
    for line in lines:
        tabs = line.text.count("\t")
        if line.problem or tabs == 1:
            yield line
        else:
            problem = f"must be a text and its translation with one tab between, has {tabs} tabs"
            yield replace(line, text="", problem=problem)


def _write(
    answer: Score, output: BinaryIO, source: str, target: str, *, name: str, warnings: Warnings, json_lines: bool
) -> None:
    if answer.source_truncated:
        warn_cut(name, answer.source_token_count)
    warnings.unknown_source(name, answer.source_unknown_count, answer.source_token_count)
    if answer.target_unknown_count:
        unknown = f"{answer.target_unknown_count} of {len(answer.tokens)}"
        warnings.once(
            "target",
            f"{name}: {unknown} tokens of the translation are unknown to the model, so their scores mean little",
        )
    if not json_lines:
        write_line(f"{answer.score:.6f}", output)
        return
    fields = {name: getattr(answer, name) for name in SCORE_FIELDS}
    write_line(json_line({"source": source, "target": target, **fields}), output)
