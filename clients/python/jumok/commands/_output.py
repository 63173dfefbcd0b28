"""How translations are written to standard output, and progress to the terminal."""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from jumok.commands._line_requests import InputError, Line
from jumok_proto.results import Hypothesis, Translation


def plain(translation: Translation) -> str:
    """The best hypothesis on one line."""
    return _one_line(translation.text)


def n_best(translation: Translation, number: int) -> str:
    """All hypotheses, one a line: number of the text, rank, score and translation, separated by tabs."""
    return "\n".join(
        f"{number}\t{rank}\t{hypothesis.score:.6f}\t{_one_line(hypothesis.text)}"
        for rank, hypothesis in enumerate(translation.hypotheses, start=1)
    )


def as_json(translation: Translation, source: str) -> str:
    """All there is to know, as one JSON object on one line."""
    fields: dict[str, object] = {
        "source": source,
        "text": translation.text,
        "score": translation.score,
        "source_language": translation.source_language,
        "target_language": translation.target_language,
        "source_token_count": translation.source_token_count,
        "output_token_count": translation.output_token_count,
        "source_truncated": translation.source_truncated,
        "model": translation.model,
        "model_version": translation.model_version,
        "hypotheses": [_hypothesis(hypothesis) for hypothesis in translation.hypotheses],
    }
    if translation.hypotheses[0].attention is not None:
        fields["source_tokens"] = translation.source_tokens
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def json_error(error: InputError, line: Line) -> str:
    """Why a line has no translation, as one JSON object on one line."""
    reason = str(error).removeprefix(f"{line.name}: ")
    return json.dumps({"source": None if line.problem else line.text, "error": reason}, ensure_ascii=False)


def _hypothesis(hypothesis: Hypothesis) -> dict[str, object]:
    fields: dict[str, object] = {
        "text": hypothesis.text,
        "score": hypothesis.score,
        "tokens": hypothesis.tokens,
        "token_ids": hypothesis.token_ids,
        "token_scores": hypothesis.token_scores,
        "finish_reason": hypothesis.finish_reason.value,
    }
    if hypothesis.attention is not None:
        fields["attention"] = hypothesis.attention
    return fields


def write_line(line: str) -> None:
    """Write in UTF-8, which input is in too, whatever the locale says."""
    # What is no character can only stand in JSON, where it is escaped so.
    sys.stdout.buffer.write(f"{line}\n".encode(errors="backslashreplace"))


@contextmanager
def progress(source: int | None, label: str) -> Iterator[Callable[[list[Line]], None]]:
    """Show on standard error how far the file of this descriptor is done; gives what to report lines to.

    Nothing is shown where nobody looks, or where lines are typed or appear on the same terminal.
    """
    if source is None or os.isatty(source) or not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda lines: None
        return
    status = os.fstat(source)
    if stat.S_ISREG(status.st_mode):
        rest = status.st_size - os.lseek(source, 0, os.SEEK_CUR)
        with click.progressbar(length=rest, label=label, file=sys.stderr) as by_bytes:
            yield lambda lines: by_bytes.update(sum(line.size for line in lines))
    else:
        # Of a pipe nobody knows the end; click wants an iterable instead of a length then, which is not used here.
        endless = iter(int, 1)
        with click.progressbar(endless, label=label, file=sys.stderr, show_pos=True) as by_lines:
            yield lambda lines: by_lines.update(len(lines))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
