"""Runners: translate lines through a server, or with a bundle in this process."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, Protocol, TypeAlias

from jumok import Client, TextResult, Translation
from jumok.commands._line_requests import InputError, Line, Request, answer_lines, blamed_line
from jumok.commands._options import LocalTranslator
from jumok_proto.errors import JumokError

Outcome: TypeAlias = "Translation | InputError"
TranslateIter = Callable[[Iterator[str]], Generator[TextResult, None, None]]


class Runner(Protocol):
    """Translates lines."""

    def __call__(self, lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
        """Yield each line with its translation or error, in order and as soon as possible.

        Lines are read in another thread. An exception of ``lines`` is raised after the outcomes of earlier lines.
        """


def make_runner(
    translator: Client | LocalTranslator,
    *,
    model: str,
    timeout_s: float,
    target_prefix: str | None = None,
    **settings: Any,
) -> Runner:
    """Make the runner of a server or a bundle.

    Args:
        model: name of the server's model; empty: chosen by the server.
        timeout_s: timeout of a request; an overloaded translator is asked again for as long.
        target_prefix: beginning of each translation.
        settings: further parameters of ``translate``.
    """
    if isinstance(translator, Client):
        translate_iter = partial(
            translator.translate_iter, model=model, timeout_s=timeout_s, target_prefix=target_prefix, **settings
        )
        return partial(_by_server, translate_iter=translate_iter)
    translate = translator.translate

    def translate_lines(contents: list[str]) -> list[Translation]:
        prefixes = None if target_prefix is None else [target_prefix] * len(contents)
        return translate(contents, target_prefix=prefixes, timeout_s=timeout_s, **settings)

    return partial(in_process, translate=translate_lines, retry_s=timeout_s)


def _by_server(lines: Iterable[Line], translate_iter: TranslateIter) -> Generator[tuple[Line, Outcome], None, None]:
    """Translate lines through a server, in one call; in order, and as they arrive."""
    sent: deque[Line] = deque()

    def texts() -> Iterator[str]:
        for line in lines:
            sent.append(line)
            yield line.text

    with closing(translate_iter(texts())) as results:
        for result in results:
            yield _outcome(sent.popleft(), result.outcome)


def in_process(
    lines: Iterable[Line], translate: Request[Translation], *, retry_s: float
) -> Generator[tuple[Line, Outcome], None, None]:
    """Translate lines with a bundle, in batches, in order, as they arrive."""

    def each(texts: list[str]) -> list[Translation | JumokError]:
        found: list[Translation | JumokError] = []
        while len(found) < len(texts):
            rest = texts[len(found) :]
            try:
                found += translate(rest)
            except JumokError as error:
                index = blamed_line(error, len(rest))
                if index is None:
                    raise
                found += [*each(rest[:index]), error]
        return found

    for batch in answer_lines(lines, each, retry_s=retry_s):
        for line, outcome in zip(batch.lines, batch.answers, strict=True):
            yield _outcome(line, outcome)


def _outcome(line: Line, outcome: Translation | JumokError) -> tuple[Line, Outcome]:
    if line.problem:
        return line, InputError(f"{line.name}: {line.problem}")
    return line, InputError.of(line, outcome) if isinstance(outcome, JumokError) else outcome
