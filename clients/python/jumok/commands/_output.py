"""Output: translations to standard output, progress to the terminal."""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import click

from jumok._files import written
from jumok.commands._line_requests import InputError, Line
from jumok_proto.errors import InternalError, printable
from jumok_proto.results import Hypothesis, Translation

CLEAR = 0.25
"""Least confidence in a detected language without a warning."""

TRANSLATION_FIELDS = (
    *("text", "score", "source_language", "source_confidence", "target_language"),
    *("source_token_count", "output_token_count", "source_truncated", "source_unknown_count", "prefix_unknown_count"),
    *("model", "model_version", "cut_sentences"),
)
"""Fields of a translation in JSON, in their order; its hypotheses follow."""
HYPOTHESIS_FIELDS = ("text", "score", "tokens", "token_ids", "token_scores", "finish_reason")


def warn(message: str) -> None:
    """Write a warning to standard error."""
    click.echo(f"Warning: {printable(message)}", err=True)


def warn_cut(name: str, kept: int) -> None:
    """Warn of a text that was cut to its first tokens."""
    warn(f"{name}: too long for the model, cut to {kept} tokens")


def write_columns(*columns: str) -> None:
    """Write fields that a server chose as one line with tabs between."""
    click.echo("\t".join(map(printable, columns)))


class Warnings:
    """Warnings on standard error, the first of each kind."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def once(self, kind: str, message: str) -> None:
        """Write a warning, unless one of its kind was written."""
        if kind not in self._given:
            self._given.add(kind)
            warn(f"{message}; others are not reported")

    def missing_terms(self, name: str, translation: Translation) -> None:
        """Warn of the first text with terms that its translation lacks."""
        missing = [term.source for term in translation.hypotheses[0].terms if not term.satisfied]
        if missing:
            self.once("term", f"{name}: the translation lacks the term {missing[0]!r}, which the model cannot write")

    def unknown_source(self, name: str, unknown: int, tokens: int) -> None:
        """Warn of the first text with unknown tokens."""
        if unknown:
            self.once("source", f"{name}: {unknown} of {tokens} tokens are unknown to the model, which guesses there")

    def unclear_language(self, name: str, translation: Translation) -> None:
        """Warn of a language that was detected with little confidence."""
        confidence = translation.source_confidence
        if confidence is None:
            return
        if not translation.model and translation.text.strip():
            self.once("kept", f"{name} is {translation.source_language} or has no words, and was not translated")
        elif confidence < CLEAR:
            self.once(
                "language",
                f"{name} was taken for {translation.source_language} with confidence {confidence:.2f}: give "
                "--source-language",
            )


def n_best(translation: Translation, number: int) -> str:
    """Format each hypothesis as a line: number, rank, score, translation, with tabs."""
    return "\n".join(
        f"{number}\t{rank}\t{hypothesis.score:.6f}\t{one_line(hypothesis.text)}"
        for rank, hypothesis in enumerate(translation.hypotheses, start=1)
    )


def as_json(translation: Translation, source: str) -> str:
    """Format a translation with all its fields as one JSON object on one line."""
    fields: dict[str, object] = {"source": source, **{name: getattr(translation, name) for name in TRANSLATION_FIELDS}}
    fields["hypotheses"] = [_hypothesis(hypothesis) for hypothesis in translation.hypotheses]
    if translation.hypotheses[0].attention is not None:
        fields["source_tokens"] = translation.source_tokens
    if translation.pivot is not None:
        fields["pivot"] = asdict(translation.pivot)
    return json_line(fields)


def json_line(fields: dict[str, object]) -> str:
    """Format an answer of a server as one JSON object on one line; raise InternalError for numbers that JSON lacks."""
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InternalError("the server's answer cannot be read: it has numbers that are not finite") from error


def json_error(error: InputError, line: Line) -> str:
    """Format the error of a line as one JSON object on one line."""
    reason = str(error).removeprefix(f"{line.name}: ")
    return json.dumps({"source": None if line.problem else line.text, "error": reason}, ensure_ascii=False)


def _hypothesis(hypothesis: Hypothesis) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(hypothesis, name) for name in HYPOTHESIS_FIELDS}
    if hypothesis.attention is not None:
        fields["attention"] = hypothesis.attention
    if hypothesis.terms:
        fields["terms"] = [asdict(term) for term in hypothesis.terms]
    return fields


class LongTexts(NamedTuple):
    """Numbers of sentences and texts that were too long for the model.

    Attributes:
        cut_sentences: sentences that were cut into parts.
        truncated: texts whose ends were left out.
    """

    cut_sentences: int = 0
    truncated: int = 0

    def warn(self, name: str) -> None:
        """Warn of them, by the name of their file."""
        if self.cut_sentences:
            warn(
                f"{name}: sentences too long for the model, cut into parts: {self.cut_sentences}; "
                "--no-cut-long-sentences reports their texts instead"
            )
        if self.truncated:
            warn(
                f"{name}: texts too long for the model, with ends left out: {self.truncated}; "
                "without --truncate, sentences are cut into parts"
            )


NONE_LONG = LongTexts()


def write_line(line: str, output: BinaryIO | None = None) -> None:
    """Write a line in UTF-8, as input is, for any locale; None: to standard output."""
    write_text(f"{line}\n", output or sys.stdout.buffer)


def write_text(text: str, output: BinaryIO) -> None:
    """Write a text as it is, in UTF-8."""
    # A lone surrogate can only occur in JSON, which escapes it in this way.
    output.write(text.encode(errors="backslashreplace"))


@contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Open standard output, or a file that appears or changes as a whole at the end of the block.

    After an exception the file is as it was before.
    """
    if path is None:
        yield sys.stdout.buffer
        return
    with ExitStack() as opened:
        try:
            output = opened.enter_context(written(path))
        except OSError as error:
            folder = path.resolve().parent
            wrong = error.strerror if folder.exists() else f"the folder {folder} does not exist, create it"
            raise click.ClickException(f"--output {path} cannot be written: {wrong}, or choose another") from error
        yield cast("BinaryIO", output)


@contextmanager
def progress(source: int | None, label: str, output: BinaryIO) -> Iterator[Callable[[Line], None]]:
    """Show progress through a file on standard error.

    Yields a function that takes each finished line.

    Shows nothing without a terminal, or if input or output uses the same terminal.
    """
    if source is None or os.isatty(source) or not sys.stderr.isatty() or output.isatty():
        yield lambda line: None
        return
    status = os.fstat(source)
    if stat.S_ISREG(status.st_mode):
        rest = status.st_size - os.lseek(source, 0, os.SEEK_CUR)
        with click.progressbar(length=rest, label=label, file=sys.stderr) as by_bytes:
            yield lambda line: by_bytes.update(line.size)
    else:
        # The length of a pipe is unknown; click needs an iterable instead, which is not used here.
        endless = iter(int, 1)
        with click.progressbar(endless, label=label, file=sys.stderr, show_pos=True) as by_lines:
            yield lambda line: by_lines.update(1)


def one_line(text: str) -> str:
    """Replace the ends of output lines; other separators of lines are kept."""
    return text.removesuffix("\n").replace("\r\n", " ").replace("\n", " ")
