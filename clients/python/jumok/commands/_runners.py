"""Runners: translate lines through a server, or with a bundle in this process."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, TypeAlias

from jumok import Client, TextResult, Translation
from jumok.commands._line_requests import InputError, Line, answer_lines, outcome_of
from jumok.commands._options import LocalTranslator

Outcome: TypeAlias = Translation | InputError
TranslateIter = Callable[[Iterator[str]], Generator[TextResult, None, None]]
Runner: TypeAlias = Callable[[Iterable[Line]], Generator[tuple[Line, Outcome], None, None]]
"""Translates lines: yields each with its translation or error, as `answer_lines` does."""


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

    return partial(answer_lines, request=translate_lines, retry_s=timeout_s)


def _by_server(lines: Iterable[Line], translate_iter: TranslateIter) -> Generator[tuple[Line, Outcome], None, None]:
    """Translate lines through a server, in one call; in order, and as they arrive."""
    sent: deque[Line] = deque()

    def texts() -> Iterator[str]:
        for line in lines:
            sent.append(line)
            yield line.text

    with closing(translate_iter(texts())) as results:
        for result in results:
            line = sent.popleft()
            yield line, outcome_of(line, result.outcome)
