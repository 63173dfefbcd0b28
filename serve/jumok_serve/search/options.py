"""Decoding options of a request, complete options of a search, and their checks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.options import OPTIONS, EarlyStopping, Kind
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens

MAX_TOKEN_LIST: Final = 4096
"""Most tokens that a request may suppress, or end with."""
_TOKEN: Final = OPTIONS["forced_first_token"]


def _refused(name: str, problem: str) -> InvalidArgumentError:
    """Make the error of an option; the problem goes on after its name."""
    return InvalidArgumentError(f"{name} {problem}", field=f"options.{name}")


def _integer(name: str, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(name, f"must be a whole number, got {value!r}")
    option = OPTIONS.get(name, _TOKEN)
    if not option.least <= value <= option.most:
        raise _refused(name, f"must be at least {option.least} and at most {option.most}, got {value}")
    return value


def _number(name: str, value: object) -> object:
    option = OPTIONS[name]
    try:
        finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        finite = False
    if not finite or not isinstance(value, int | float):
        problem = "must be a finite number"
    elif option.least <= value <= option.most:
        return float(value)
    else:
        problem = f"must be at least {option.least:g} and at most {option.most:g}"
    raise _refused(name, f"{problem}, got {value!r}{option.hint}")


def _flag(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise _refused(name, f"must be True or False, got {value!r}")
    return value


def _early_stopping(name: str, value: object) -> object:
    if not isinstance(value, bool) and value != "never":
        raise _refused(name, f'must be True, False or "never", got {value!r}')
    return value


def _tokens(name: str, value: object) -> object:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _refused(name, f"must be a sequence of token ids, got {value!r}")
    if len(value) > MAX_TOKEN_LIST:
        raise _refused(name, f"takes at most {MAX_TOKEN_LIST} tokens, got {len(value)}")
    for token in value:
        _integer(name, token)
    unique = dict.fromkeys(value)
    return value if isinstance(value, tuple) and len(unique) == len(value) else tuple(unique)


def _words(name: str, value: object) -> object:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not all(value):
        raise _refused(name, f"must be sequences of token ids, got {value!r}")
    for word in value:
        _tokens(name, word)
    return tuple(tuple(word) for word in value)


_CHECKS: dict[Kind, Callable[[str, object], object]] = {
    "integer": _integer,
    "number": _number,
    "flag": _flag,
    "token_id": _integer,
    "token_ids": _tokens,
    "early_stopping": _early_stopping,
}
_CHECK_OF: dict[str, Callable[[str, object], object]] = {
    **{name: _CHECKS[option.kind] for name, option in OPTIONS.items()},
    "begin_suppress_tokens": _tokens,
    "bad_words": _words,
    "eos_ids": _tokens,
    "forced_last_tokens": _tokens,
    "renormalize": _flag,
}


def check_fields(options: Any) -> None:
    """Check every field of a dataclass of options, one with slots, that is set, and convert its type.

    Raises:
        InvalidArgumentError: a value has the wrong type or lies outside its range.
    """
    for name in options.__slots__:
        value = getattr(options, name)
        if value is not None and name in _CHECK_OF:
            object.__setattr__(options, name, _CHECK_OF[name](name, value))


def check_beam(beam_size: int, num_hypotheses: int | None, *, samples: bool, whence: str = "") -> None:
    """Raise InvalidArgumentError for a beam that is too wide or too narrow; ``whence``: origin of its size."""
    if samples and beam_size > 1:
        raise InvalidArgumentError(
            f"sampling draws one token at a time: it excludes a beam_size above 1, got {beam_size}; for several "
            "samples ask for num_hypotheses",
            field="options.beam_size",
        )
    if num_hypotheses is not None and num_hypotheses > beam_size and not samples:
        raise _refused(
            "num_hypotheses",
            f"must be at most beam_size, which is {beam_size}{whence}, got {num_hypotheses}; ask for a larger "
            "beam_size too",
        )


def check_lengths(min_length: int, max_length: int, *, described: str | None = None) -> None:
    """Raise InvalidArgumentError for a least length above the most; ``described``: name of the most."""
    if min_length > max_length:
        described = described or f"max_length, which is {max_length}"
        raise _refused("min_length", f"must be at most {described}, got {min_length}")


MAX_BEAM_SIZE: Final = int(OPTIONS["beam_size"].most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling from softmax(logits / temperature), cut to ``top_k``, then to ``top_p``.

    The value 0 of ``top_k`` keeps all tokens.

    ``top_p`` keeps the fewest most likely tokens whose probabilities reach it (1: all). Equal seeds draw equal tokens.

    Raises:
        InvalidArgumentError: a value has the wrong type or lies outside its range.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int | None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The complete options of a search.

    Lengths count new tokens: EOS, but neither start token nor target prefix.

    Args:
        min_length: tokens before EOS becomes possible, as Hugging Face's ``min_new_tokens``.
        eos_ids: tokens that end a hypothesis.
        begin_suppress_tokens: tokens that the first free token cannot be.
        bad_words: sequences of tokens that are never completed.
        forced_last_tokens: a hypothesis of the maximum length ends with one of them.
        renormalize: apply log-softmax again after constraints on log-probabilities.

    The others are as in ``DecodingOptions``.

    Raises:
        InvalidArgumentError: a value has the wrong type or lies outside its range, or two contradict each other.
    """

    beam_size: int
    num_hypotheses: int
    length_penalty: float
    early_stopping: EarlyStopping
    min_length: int
    max_length: int
    eos_ids: tuple[int, ...]
    suppress_tokens: tuple[int, ...]
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    forced_first_token: int | None = None
    forced_last_tokens: tuple[int, ...] = ()
    renormalize: bool = False
    coverage_penalty: float = 0.0
    replace_unknowns: bool = False
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_beam(self.beam_size, self.num_hypotheses, samples=self.sampling is not None)
        check_lengths(self.min_length, self.max_length)
        suppressed = set(self.suppress_tokens)
        if self.forced_first_token in suppressed:
            raise _refused(
                "forced_first_token",
                f"{self.forced_first_token} is suppressed at the same time; leave it out of suppress_tokens",
            )
        for tokens, role in ((self.eos_ids, "end token"), (self.forced_last_tokens, "forced last token")):
            if tokens and suppressed.issuperset(tokens):
                raise _refused(
                    "suppress_tokens", f"hold every {role} ({', '.join(map(str, tokens))}): no translation could end"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """Decoding options of a request; ``None`` takes the model's default.

    They are those of `jumok_proto.options.Options`. If ``sample`` is None, any of ``temperature``, ``top_k``,
    ``top_p`` or ``seed`` turns it on. ``early_stopping`` tells when a full list of ended hypotheses ends the search:
    ``True``: at once; ``False``: when the best running one would not enter the list at its present length;
    ``"never"``: when it could at no length. ``repetition_penalty`` is that of Keskar et al., 2019; the tasks add the
    penalty of `jumok_serve.tasks.hypothesis_attention.log_coverage` once the search has ended.

    Raises:
        InvalidArgumentError: a value has the wrong type or lies outside its range; ``field`` is ``options.<name>``.
    """

    beam_size: int | None = None
    num_hypotheses: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    min_length: int | None = None
    max_length: int | None = None
    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    suppress_tokens: Sequence[int] | None = None
    end_tokens: Sequence[int] | None = None
    forced_first_token: int | None = None
    sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    coverage_penalty: float | None = None
    replace_unknowns: bool | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.beam_size is not None:
            # With a beam size of 1 a model may sample by default.
            may_sample = self.beam_size == 1 or bool(self._sampling_options)
            check_beam(self.beam_size, self.num_hypotheses, samples=_first(self.sample, may_sample))
        if self.min_length is not None and self.max_length is not None:
            check_lengths(self.min_length, self.max_length)
        if self.end_tokens is not None and not self.end_tokens:
            raise _refused("end_tokens", "must name at least one token")

    @property
    def _sampling_options(self) -> list[str]:
        """Names of the sampling options that are set."""
        return [name for name in ("temperature", "top_k", "top_p", "seed") if getattr(self, name) is not None]

    def resolve(
        self,
        generation: GenerationDefaults,
        special: SpecialTokens,
        limits: Limits,
        *,
        vocabulary: int,
        forced_first: int | None = None,
        prefix: Sequence[int] = (),
    ) -> SearchOptions:
        """Fill in a model's defaults, and check the options against its limits.

        A default yields to the request: ``beam_size=1`` also lowers the default ``num_hypotheses`` to 1. A value of the
        request is never changed.

        Args:
            forced_first: first token that the target language needs.
            prefix: target prefix that the hypotheses continue, forced first token included.

        Raises:
            InvalidArgumentError: an option does not fit the model's limits or its other defaults.
        """
        self._check_vocabulary(vocabulary)
        never = self._never_written(special)
        self._check_written(never)
        self._check_sampling(generation)
        sample = self._samples(generation)
        beam_size = _first(self.beam_size, 1 if sample else generation.beam_size)
        whence = " by the model's default" if self.beam_size is None else ""
        check_beam(beam_size, self.num_hypotheses, samples=sample, whence=whence)
        max_length = self._max_length(generation, limits.max_target_length, prefix)
        if self.min_length is not None:
            check_lengths(self.min_length, max_length, described=f"{max_length} with this model{_after(prefix)}")
        forced = _first(self.forced_first_token, forced_first, generation.forced_first_token)
        return SearchOptions(
            beam_size=beam_size,
            num_hypotheses=_first(
                self.num_hypotheses, generation.num_hypotheses if sample else min(generation.num_hypotheses, beam_size)
            ),
            min_length=_first(self.min_length, min(generation.min_length, max_length)),
            max_length=max_length,
            eos_ids=_first(self.end_tokens, special.eos),
            suppress_tokens=_united(never, tuple(self.suppress_tokens or ())),
            begin_suppress_tokens=generation.begin_suppress_tokens,
            bad_words=generation.bad_words,
            forced_first_token=None if prefix else forced,
            forced_last_tokens=generation.forced_last_tokens,
            renormalize=generation.renormalize,
            sampling=Sampling(
                temperature=_first(self.temperature, generation.temperature),
                top_k=_first(self.top_k, generation.top_k),
                top_p=_first(self.top_p, generation.top_p),
                seed=self.seed,
            )
            if sample
            else None,
            **self._plain(generation),
        )

    def _plain(self, generation: GenerationDefaults) -> dict[str, Any]:
        """Return the options that the search takes as they are given, or as the model has them."""
        values = {name: _first(getattr(self, name), getattr(generation, name, None)) for name in _PLAIN}
        return {name: value for name, value in values.items() if value is not None}

    def _samples(self, generation: GenerationDefaults) -> bool:
        if self.sample is not None:
            return self.sample
        return bool(self._sampling_options) or (generation.sample and (self.beam_size or 1) == 1)

    def _never_written(self, special: SpecialTokens) -> tuple[int, ...]:
        """Tokens that the model never writes; an unknown token may be one of them, unless it is replaced."""
        return _without(special.suppress, special.unk) if self.replace_unknowns else special.suppress

    def _check_sampling(self, generation: GenerationDefaults) -> None:
        """Refuse sampling options if ``sample`` is False, except the model's own values."""
        if self.coverage_penalty and self._samples(generation):
            raise _refused(
                "coverage_penalty",
                "orders the hypotheses of a search, and samples have no order: leave it out, or leave out "
                "sample and its options",
            )
        if self.sample is not False:
            return
        for name in self._sampling_options:
            if name == "seed" or getattr(self, name) != getattr(generation, name):
                raise _refused(name, "has no meaning without sampling: leave it out, or set sample")

    def _max_length(self, generation: GenerationDefaults, longest: int, prefix: Sequence[int]) -> int:
        remaining = longest - len(prefix)
        if remaining < 1:
            raise InvalidArgumentError(
                f"the target prefix has {len(prefix)} tokens, and the model writes at most {longest}: there is no room "
                "for another",
                field="target_prefix",
            )
        if self.max_length is None:
            return min(max(generation.max_length, self.min_length or 1), remaining)
        if self.max_length > remaining:
            raise _refused(
                "max_length", f"must be at most {remaining} with this model{_after(prefix)}, got {self.max_length}"
            )
        return self.max_length

    def _check_vocabulary(self, vocabulary: int) -> None:
        requested: dict[str, Sequence[int]] = {
            "suppress_tokens": self.suppress_tokens or (),
            "end_tokens": self.end_tokens or (),
            "forced_first_token": () if self.forced_first_token is None else (self.forced_first_token,),
        }
        for name, tokens in requested.items():
            for token in tokens:
                if token >= vocabulary:
                    raise InvalidArgumentError(
                        f"{name}: token {token} lies beyond the model's vocabulary of {vocabulary}",
                        field=f"options.{name}",
                    )

    def _check_written(self, never: Sequence[int]) -> None:
        """Refuse tokens that the model never writes."""
        if self.forced_first_token in never:
            raise _refused(
                "forced_first_token", f"{self.forced_first_token} is one that the model never writes: force another"
            )
        if self.end_tokens is not None and set(self.end_tokens) <= {*never}:
            raise _refused(
                "end_tokens",
                f"are such as the model never writes ({', '.join(map(str, self.end_tokens))}): no translation "
                "could end; name another",
            )


_PLAIN: Final = [
    name
    for name in OPTIONS
    if name in SearchOptions.__slots__
    and name not in {"beam_size", "num_hypotheses", "min_length", "max_length", "suppress_tokens", "forced_first_token"}
]


@lru_cache(maxsize=16)
def _united(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens of both, each once; one object for all sentences with equal options."""
    return tuple(dict.fromkeys((*first, *second)))


@lru_cache(maxsize=16)
def _without(tokens: tuple[int, ...], left_out: int | None) -> tuple[int, ...]:
    """Return tokens without one; one object for all sentences with equal options."""
    return tuple(token for token in tokens if token != left_out)


def _after(prefix: Sequence[int]) -> str:
    return f" after a target prefix of {len(prefix)} tokens" if prefix else ""


def _first(*values: Any) -> Any:
    """Return the first value that is not None, or None."""
    return next((value for value in values if value is not None), None)
