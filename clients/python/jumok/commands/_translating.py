"""Lines on their way to translations: every line has one, or an error of its own, which does not stop the others."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import TypeAlias

from jumok import TextResult, Translation
from jumok.commands._line_requests import InputError, Line, answer_lines, blamed_line
from jumok_proto.errors import JumokError

Outcome: TypeAlias = tuple[Line, Translation | InputError]
TranslateLines = Callable[[list[str]], list[Translation]]
TranslateIter = Callable[[Iterator[str]], Generator[TextResult, None, None]]


def by_server(lines: Iterable[Line], translate_iter: TranslateIter) -> Iterator[Outcome]:
    """Translate lines through a server, in one call where nothing happens to it; in order, and as they come."""
    asked: deque[Line] = deque()

    def texts() -> Iterator[str]:
        for line in lines:
            asked.append(line)
            yield line.text

    with closing(translate_iter(texts())) as results:
        for result in results:
            yield _outcome(asked.popleft(), result.outcome)


def in_process(lines: Iterable[Line], translate: TranslateLines, *, patience_s: float) -> Iterator[Outcome]:
    """Translate lines with a bundle, in requests of what waits; in order, and as they come."""

    def each(texts: list[str]) -> list[Translation | JumokError]:
        found: list[Translation | JumokError] = []
        while len(found) < len(texts):
            rest = texts[len(found) :]
            try:
                found += translate(rest)
            except JumokError as error:
                index = blamed_line(error)
                if index is None:
                    raise
                found += [*each(rest[:index]), error]
        return found

    for batch in answer_lines(lines, each, patience_s=patience_s):
        for line, outcome in zip(batch.lines, batch.answers, strict=True):
            yield _outcome(line, outcome)


def _outcome(line: Line, outcome: Translation | JumokError) -> Outcome:
    if line.problem:
        return line, InputError(f"{line.name}: {line.problem}")
    return line, InputError.of(line, outcome) if isinstance(outcome, JumokError) else outcome
