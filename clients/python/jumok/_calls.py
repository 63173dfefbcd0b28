"""What both clients share: how a request is made and checked, and how an answer is read."""

from collections.abc import Sequence
from typing import SupportsFloat, SupportsIndex

from jumok._errors import InternalError, invalid_field
from jumok_proto.conversion import (
    EarlyStopping,
    OptionFields,
    model_from_proto,
    options_to_proto,
    response_from_proto,
)
from jumok_proto.results import Model, Translation
from jumok_proto.v1 import model_pb2, translation_pb2

DEFAULT_TIMEOUT_S = 60.0
LONGEST_TIMEOUT_S = 365.0 * 24 * 3600
"""Longer ones, infinity among them, overflow gRPC's clock, which then calls them past."""
MAX_MESSAGE_BYTES = 32 * 2**20

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # an answer can be larger than its request
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


def translate_request(
    texts: str | Sequence[str],
    *,
    beam_size: int | None,
    num_hypotheses: int | None,
    length_penalty: float | None,
    early_stopping: EarlyStopping | None,
    min_length: int | None,
    max_length: int | None,
    truncate: bool,
    model: str,
) -> translation_pb2.TranslateTextRequest:
    """Make a request; raise InvalidArgument for what cannot be sent. What can be sent is for the server to judge."""
    contents = [texts] if isinstance(texts, str) else list(texts)
    for index, text in enumerate(contents):
        _check_text(f"contents[{index}]", text)
    _check_text("model", model)
    fields = OptionFields(
        beam_size=_integer("beam_size", beam_size),
        num_hypotheses=_integer("num_hypotheses", num_hypotheses),
        length_penalty=_number("length_penalty", length_penalty),
        early_stopping=_early_stopping(early_stopping),
        min_length=_integer("min_length", min_length),
        max_length=_integer("max_length", max_length),
    )
    if not isinstance(truncate, bool):
        raise invalid_field("truncate", f"must be True or False, got {truncate!r}")
    return translation_pb2.TranslateTextRequest(
        model=model, contents=contents, options=options_to_proto(fields), truncate=truncate
    )


def get_model_request(name: str) -> model_pb2.GetModelRequest:
    """Ask for one model."""
    _check_text("name", name)
    return model_pb2.GetModelRequest(name=name)


def read_translations(response: translation_pb2.TranslateTextResponse, count: int) -> list[Translation]:
    """Read an answer to a request of ``count`` texts."""
    if len(response.translations) != count or not all(answer.hypotheses for answer in response.translations):
        raise InternalError(f"the server answered {count} texts with {len(response.translations)} translations")
    try:
        return response_from_proto(response)
    except ValueError as error:
        raise InternalError(f"the server's answer cannot be read: {error}") from error


def read_models(response: model_pb2.ListModelsResponse) -> list[Model]:
    """Read the list of models."""
    return [model_from_proto(model) for model in response.models]


def read_model(response: model_pb2.GetModelResponse) -> Model:
    """Read one model."""
    return model_from_proto(response.model)


def check_open(closed: bool) -> None:
    """Refuse to use a client after its end, as a closed file would."""
    if closed:
        raise ValueError("the client is closed")


def check_timeout(timeout_s: float) -> float:
    """Give back a time limit in seconds; raise InvalidArgument where it is none."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise invalid_field("timeout_s", f"must be a number of seconds above 0, got {timeout_s!r}")
    return float(min(timeout_s, LONGEST_TIMEOUT_S))


def _check_text(field: str, text: object) -> None:
    if not isinstance(text, str):
        raise invalid_field(field, f"must be a str, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid_field(
            field, f"holds a lone surrogate (U+{ord(text[error.start]):04X} at {error.start}), which is no character"
        ) from error


def _integer(name: str, value: SupportsIndex | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise invalid_field(f"options.{name}", f"must be an integer, got {value!r}")
    number = value.__index__()
    if not -(2**31) <= number < 2**31:
        raise invalid_field(f"options.{name}", f"is out of range: {number}")
    return number


def _number(name: str, value: SupportsFloat | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise invalid_field(f"options.{name}", f"must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise invalid_field(f"options.{name}", "is out of range") from error


def _early_stopping(value: EarlyStopping | None) -> EarlyStopping | None:
    if value is not None and not isinstance(value, bool) and value != "never":
        raise invalid_field("options.early_stopping", f"must be False, True or 'never', got {value!r}")
    return value
