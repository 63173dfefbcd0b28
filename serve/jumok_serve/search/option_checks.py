"""Checks of decoding options, one by one and against each other."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.options import RANGES

MAX_TOKEN_LIST: Final = 4096
"""Most tokens that a request may suppress, or end with."""
_TOKEN_IDS: Final = RANGES["forced_first_token"]


def _integer(name: str, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError(f"{name} must be a whole number, got {value!r}", field=f"options.{name}")
    least, most = RANGES.get(name, _TOKEN_IDS)
    if not least <= value <= most:
        raise InvalidArgumentError(
            f"{name} must be at least {least} and at most {most}, got {value}", field=f"options.{name}"
        )
    return value


def _number(hint: str) -> Callable[[str, object], object]:
    def check(name: str, value: object) -> object:
        try:
            finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        except OverflowError:  # an integer beyond every float
            finite = False
        if not finite or not isinstance(value, int | float):
            raise InvalidArgumentError(f"{name} must be a finite number, got {value!r}{hint}", field=f"options.{name}")
        least, most = RANGES[name]
        if not least <= value <= most:
            raise InvalidArgumentError(
                f"{name} must be at least {least:g} and at most {most:g}, got {value!r}{hint}", field=f"options.{name}"
            )
        return float(value)

    return check


def _flag(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be True or False, got {value!r}", field=f"options.{name}")
    return value


def _early_stopping(name: str, value: object) -> object:
    if not isinstance(value, bool) and value != "never":
        raise InvalidArgumentError(f'{name} must be True, False or "never", got {value!r}', field=f"options.{name}")
    return value


def _tokens(name: str, value: object) -> object:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidArgumentError(f"{name} must be a sequence of token ids, got {value!r}", field=f"options.{name}")
    if len(value) > MAX_TOKEN_LIST:
        raise InvalidArgumentError(
            f"{name} takes at most {MAX_TOKEN_LIST} tokens, got {len(value)}", field=f"options.{name}"
        )
    for token in value:
        _integer(name, token)
    unique = dict.fromkeys(value)
    return value if isinstance(value, tuple) and len(unique) == len(value) else tuple(unique)


def _words(name: str, value: object) -> object:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not all(value):
        raise InvalidArgumentError(f"{name} must be sequences of token ids, got {value!r}", field=f"options.{name}")
    for word in value:
        _tokens(name, word)
    return tuple(tuple(word) for word in value)


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "beam_size": _integer,
    "num_hypotheses": _integer,
    "length_penalty": _number("; 0 compares sums, 1 compares means"),
    "early_stopping": _early_stopping,
    "min_length": _integer,
    "max_length": _integer,
    "no_repeat_ngram_size": _integer,
    "repetition_penalty": _number("; 1 is none"),
    "suppress_tokens": _tokens,
    "begin_suppress_tokens": _tokens,
    "bad_words": _words,
    "end_tokens": _tokens,
    "eos_ids": _tokens,
    "forced_first_token": _integer,
    "forced_last_tokens": _tokens,
    "renormalize": _flag,
    "sample": _flag,
    "temperature": _number("; 1 leaves the model's probabilities as they are"),
    "top_k": _integer,
    "top_p": _number("; 1 keeps all tokens"),
    "seed": _integer,
    "coverage_penalty": _number("; 0 is none"),
    "replace_unknowns": _flag,
}


def check_fields(options: Any) -> None:
    """Check every field of a dataclass of options, one with slots, that is set, and convert its type.

    Raises:
        InvalidArgumentError: a value has the wrong type or lies outside its range.
    """
    for name in options.__slots__:
        value = getattr(options, name)
        if value is not None and name in _CHECKS:
            object.__setattr__(options, name, _CHECKS[name](name, value))


def check_beam(beam_size: int, num_hypotheses: int | None, *, samples: bool, whence: str = "") -> None:
    """Raise InvalidArgumentError for a beam that is too wide or too narrow; ``whence``: origin of its size."""
    if samples and beam_size > 1:
        raise InvalidArgumentError(
            f"sampling draws one token at a time: it excludes a beam_size above 1, got {beam_size}; for several "
            "samples ask for num_hypotheses",
            field="options.beam_size",
        )
    if num_hypotheses is not None and num_hypotheses > beam_size and not samples:
        raise InvalidArgumentError(
            f"num_hypotheses must be at most beam_size, which is {beam_size}{whence}, got {num_hypotheses}; ask for a "
            "larger beam_size too",
            field="options.num_hypotheses",
        )


def check_lengths(min_length: int, max_length: int, *, described: str | None = None) -> None:
    """Raise InvalidArgumentError for a least length above the most; ``described``: name of the most."""
    if min_length > max_length:
        described = described or f"max_length, which is {max_length}"
        raise InvalidArgumentError(
            f"min_length must be at most {described}, got {min_length}", field="options.min_length"
        )
