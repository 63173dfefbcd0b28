"""``jumok translate``: arguments or lines of standard input, through a server or a bundle."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, Protocol

import click

from jumok import Client, Translation
from jumok._cli import missing
from jumok.commands._output import as_json, n_best, plain, progress, write_line
from jumok.commands._pipeline import Line, read_lines, translate_lines

STDIN = 0
EARLY_STOPPING: dict[str, bool | Literal["never"]] = {"false": False, "true": True, "never": "never"}


class LocalTranslator(AbstractContextManager["LocalTranslator"], Protocol):
    """What translates a bundle in this process: the one of the server room."""

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None,
        num_hypotheses: int | None,
        length_penalty: float | None,
        early_stopping: bool | Literal["never"] | None,
        min_length: int | None,
        max_length: int | None,
        truncate: bool,
        timeout_s: float | None,
    ) -> list[Translation]:
        """Translate texts in one request."""


@click.command()
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "--server",
    metavar="HOST:PORT",
    envvar="JUMOK_SERVER",
    default="localhost:50051",
    show_default=True,
    show_envvar=True,
    help="Server to ask.",
)
@click.option(
    "--bundle",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Bundle to translate with in this process, without a server.",
)
@click.option("--model", default="", help="Name of the model, where the server holds several.")
@click.option("--beam-size", type=int, help="Hypotheses kept while decoding, 1 to 64; 1 is greedy.")
@click.option("--num-hypotheses", type=int, help="Candidates to write for every text.")
@click.option("--length-penalty", type=float, help="Divide scores by length to this power; more favours longer ones.")
@click.option(
    "--early-stopping",
    type=click.Choice(list(EARLY_STOPPING)),
    help="When a beam search that has enough candidates stops: when a better one is unlikely (false), at once (true), "
    "or only when no better one is possible (never).",
)
@click.option("--min-length", type=int, help="Tokens that a translation has at least.")
@click.option("--max-length", type=int, help="Tokens that a translation has at most.")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long for the model, instead of refusing them.")
@click.option("--json", "json_lines", is_flag=True, help="Write one JSON object a line, with scores and tokens.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds that one request may take; a long input is sent in many.",
)
@click.pass_context
def translate(
    context: click.Context,
    *,
    texts: tuple[str, ...],
    server: str,
    bundle: Path | None,
    model: str,
    beam_size: int | None,
    num_hypotheses: int | None,
    length_penalty: float | None,
    early_stopping: str | None,
    min_length: int | None,
    max_length: int | None,
    truncate: bool,
    json_lines: bool,
    timeout_s: float,
) -> None:
    """Translate TEXTs, or else the lines of standard input, which must be UTF-8.

    Writes one line for every text, in order and as soon as it is known. With --num-hypotheses above 1, writes a line
    for every candidate instead: number of the text, rank, score and translation, separated by tabs. Options that are
    not given keep the model's defaults.
    """
    if bundle is not None:
        for parameter in ("server", "model"):
            if context.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--bundle and --{parameter} exclude each other: a bundle is one model, here")
    source = None if texts else STDIN
    lines = _arguments(texts) if source is None else read_lines(open(source, "rb", closefd=False))  # noqa: SIM115
    with _local(bundle) if bundle is not None else Client(server) as translator, progress(source) as advance:
        ask = partial(
            translator.translate,
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
            length_penalty=length_penalty,
            early_stopping=None if early_stopping is None else EARLY_STOPPING[early_stopping],
            min_length=min_length,
            max_length=max_length,
            truncate=truncate,
            timeout_s=timeout_s,
        )
        if isinstance(translator, Client):
            ask = partial(ask, model=model)
        number = 0
        for batch in translate_lines(lines, ask, patience_s=timeout_s):
            for line, translation in zip(batch.lines, batch.translations, strict=True):
                number += 1
                if translation.source_truncated:
                    kept = translation.source_token_count
                    click.echo(f"Warning: {line.name}: too long for the model, cut to {kept} tokens", err=True)
                write_line(_written(translation, line, number, json_lines, num_hypotheses))
            sys.stdout.flush()
            advance(batch.lines)


def _written(translation: Translation, line: Line, number: int, json_lines: bool, num_hypotheses: int | None) -> str:
    if json_lines:
        return as_json(translation, line.text)
    return plain(translation) if (num_hypotheses or 1) == 1 else n_best(translation, number)


def _arguments(texts: Sequence[str]) -> Iterator[Line]:
    for number, text in enumerate(texts, start=1):
        yield Line(text, f"text {number}", len(text))


def _local(bundle: Path) -> LocalTranslator:
    """Open a bundle with what the server room offers; this room does not know it otherwise."""
    (entry_point,) = entry_points(group="jumok.local", name="translator")
    try:
        translator: Callable[[Path], LocalTranslator] = entry_point.load()
    except ImportError as error:
        raise click.ClickException(f"--bundle {missing(error, entry_point)}") from error
    return translator(bundle)
