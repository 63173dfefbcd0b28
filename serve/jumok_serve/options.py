"""Decoding options: what a request may ask for, and the complete set that a search runs by."""

# ruff: noqa: D102 - what the protocol's properties mean stands once, in DecodingOptions

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from jumok_serve.errors import InvalidRequest

MAX_BEAM_SIZE = 64

EarlyStopping: TypeAlias = bool | Literal["never"]
"""When a full list of K finished hypotheses ends the search: ``True`` at once, ``False`` when the best running one
would not enter the list at its present length, ``"never"`` when it could not at any length."""


class GenerationDefaults(Protocol):
    """What a bundle says about decoding; fills in whatever a request leaves open."""

    @property
    def beam_size(self) -> int: ...
    @property
    def num_hypotheses(self) -> int: ...
    @property
    def length_penalty(self) -> float: ...
    @property
    def early_stopping(self) -> EarlyStopping: ...
    @property
    def min_length(self) -> int: ...
    @property
    def max_length(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """All that a search runs by. Lengths count new tokens: the start token is left out, EOS is counted.

    A search reaches EOS only after ``min_length`` other tokens, as with Hugging Face's ``min_new_tokens``.

    Raises:
        InvalidRequest: a value has the wrong type or lies outside its range.
    """

    beam_size: int
    num_hypotheses: int
    length_penalty: float
    early_stopping: EarlyStopping
    min_length: int
    max_length: int
    eos_ids: tuple[int, ...]
    suppress_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_integer("beam_size", self.beam_size, least=1, most=MAX_BEAM_SIZE)
        _check_integer("num_hypotheses", self.num_hypotheses, least=1)
        object.__setattr__(self, "length_penalty", _finite_length_penalty(self.length_penalty))
        _check_early_stopping(self.early_stopping)
        _check_integer("min_length", self.min_length, least=0)
        _check_integer("max_length", self.max_length, least=1)
        _check_orders(self.beam_size, self.num_hypotheses, self.min_length, self.max_length)
        for name, ids in (("eos_ids", self.eos_ids), ("suppress_tokens", self.suppress_tokens)):
            for token in ids:
                _check_integer(name, token, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """What a request asks for; ``None`` leaves the choice to the model's defaults.

    Args:
        beam_size: hypotheses kept at every step, 1 to 64; 1 is greedy search.
        num_hypotheses: hypotheses returned, at most ``beam_size``.
        length_penalty: a hypothesis' score is its log-probability / length^length_penalty, so more than 0 favours
            long ones and less than 0 short ones.
        early_stopping: see ``EarlyStopping``.
        min_length: tokens before EOS becomes possible.
        max_length: most tokens of a hypothesis, EOS included.

    Raises:
        InvalidRequest: a value has the wrong type or lies outside its range; ``field`` is ``options.<name>``.
    """

    beam_size: int | None = None
    num_hypotheses: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    min_length: int | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.beam_size is not None:
            _check_integer("beam_size", self.beam_size, least=1, most=MAX_BEAM_SIZE)
        if self.num_hypotheses is not None:
            _check_integer("num_hypotheses", self.num_hypotheses, least=1, most=MAX_BEAM_SIZE)
        if self.length_penalty is not None:
            object.__setattr__(self, "length_penalty", _finite_length_penalty(self.length_penalty))
        if self.early_stopping is not None:
            _check_early_stopping(self.early_stopping)
        if self.min_length is not None:
            _check_integer("min_length", self.min_length, least=0)
        if self.max_length is not None:
            _check_integer("max_length", self.max_length, least=1)
        _check_orders(self.beam_size, self.num_hypotheses, self.min_length, self.max_length)

    def resolve(
        self,
        generation: GenerationDefaults,
        *,
        max_target_length: int,
        eos_ids: tuple[int, ...],
        suppress_tokens: tuple[int, ...],
    ) -> SearchOptions:
        """Fill in a model's defaults and check what is asked for against its limits.

        A default gives way to what was asked for (asking for ``beam_size=1`` also lowers the default
        ``num_hypotheses`` to 1); a value that was asked for is never changed.

        Raises:
            InvalidRequest: what is asked for does not fit the model's limits or its other defaults.
        """
        beam_size = generation.beam_size if self.beam_size is None else self.beam_size
        if self.num_hypotheses is not None and self.num_hypotheses > beam_size:
            raise InvalidRequest(
                f"num_hypotheses must be at most beam_size, which is {beam_size} by the model's default, "
                f"got {self.num_hypotheses}; ask for a larger beam_size too",
                field="options.num_hypotheses",
            )
        if self.max_length is not None:
            max_length = self.max_length
            if max_length > max_target_length:
                raise InvalidRequest(
                    f"max_length must be at most {max_target_length} with this model, got {max_length}",
                    field="options.max_length",
                )
        else:
            max_length = min(max(generation.max_length, self.min_length or 1), max_target_length)
        if self.min_length is not None and self.min_length > max_length:
            raise InvalidRequest(
                f"min_length must be at most {max_length} with this model, got {self.min_length}",
                field="options.min_length",
            )
        return SearchOptions(
            beam_size=beam_size,
            num_hypotheses=min(generation.num_hypotheses, beam_size)
            if self.num_hypotheses is None
            else self.num_hypotheses,
            length_penalty=generation.length_penalty if self.length_penalty is None else self.length_penalty,
            early_stopping=generation.early_stopping if self.early_stopping is None else self.early_stopping,
            min_length=min(generation.min_length, max_length) if self.min_length is None else self.min_length,
            max_length=max_length,
            eos_ids=eos_ids,
            suppress_tokens=suppress_tokens,
        )


def _check_integer(name: str, value: object, *, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number, got {value!r}", field=f"options.{name}")
    if value < least:
        raise InvalidRequest(f"{name} must be at least {least}, got {value}", field=f"options.{name}")
    if most is not None and value > most:
        raise InvalidRequest(f"{name} must be at most {most}, got {value}", field=f"options.{name}")


def _finite_length_penalty(value: object) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond every float
        pass
    raise InvalidRequest(
        f"length_penalty must be a finite number, got {value!r}; 0 compares sums, 1 compares means",
        field="options.length_penalty",
    )


def _check_early_stopping(value: object) -> None:
    if not isinstance(value, bool) and value != "never":
        raise InvalidRequest(
            f'early_stopping must be True, False or "never", got {value!r}', field="options.early_stopping"
        )


def _check_orders(
    beam_size: int | None, num_hypotheses: int | None, min_length: int | None, max_length: int | None
) -> None:
    if beam_size is not None and num_hypotheses is not None and num_hypotheses > beam_size:
        raise InvalidRequest(
            f"num_hypotheses must be at most beam_size, which is {beam_size}, got {num_hypotheses}",
            field="options.num_hypotheses",
        )
    if min_length is not None and max_length is not None and min_length > max_length:
        raise InvalidRequest(
            f"min_length must be at most max_length, which is {max_length}, got {min_length}",
            field="options.min_length",
        )
