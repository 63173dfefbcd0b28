"""What requests ask of a model beside their texts: options, languages, how long, and what attention."""

import time
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from jumok_proto.alignment_conversion import kinds_from_proto
from jumok_proto.conversion import options_from_proto
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.v1 import alignment_pb2, decoding_pb2, translation_pb2
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.models.loaded_model import LoadedModel
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.parameters import TranslationParameters
from jumok_serve.text.sentence_splitting import MAX_SENTENCES

MAX_LISTED_TOKENS = 256
"""Of an option that is a list of tokens: each is looked at in every row of every step."""
MAX_REMEMBERED_OPTIONS = 256

Asking: TypeAlias = (
    translation_pb2.TranslateTextRequest | translation_pb2.StreamTranslateTextRequest | translation_pb2.CorpusSettings
)


class Asked(NamedTuple):
    """What a request for translations asks for beside its texts."""

    parameters: TranslationParameters
    beam_size: int
    hypotheses: int
    """Of each text."""
    tokens: int
    """Of each hypothesis, at most, all its sentences together."""


def read_asked(model: LoadedModel, request: Asking, remaining_s: float | None) -> Asked:
    """Give what a request, whose caller waits for so many seconds, asks of a model.

    Raises:
        InvalidArgumentError: the options cannot be.
    """
    options = _read_options(request.options.SerializeToString())
    defaults = model.manifest.generation
    parameters = TranslationParameters(
        options=options,
        source_language=request.source_language_code,
        target_language=request.target_language_code,
        attention=request.attention,
        truncate=request.truncate,
        split_sentences=request.split_sentences,
        deadline=deadline_in(remaining_s),
    )
    hypotheses = options.num_hypotheses or defaults.num_hypotheses
    beam_size = options.beam_size or defaults.beam_size
    sentences = MAX_SENTENCES if request.split_sentences else 1
    return Asked(parameters, beam_size, hypotheses, sentences * (options.max_length or defaults.max_length))


@lru_cache(MAX_REMEMBERED_OPTIONS)
def _read_options(serialized: bytes) -> DecodingOptions:
    """What a request asks for; most ask for the same as others, in the same bytes."""
    message = decoding_pb2.DecodingOptions.FromString(serialized)
    for name, listed in (("suppress_tokens", message.suppress_tokens), ("end_tokens", message.end_tokens)):
        if len(listed.ids) > MAX_LISTED_TOKENS:
            raise InvalidArgumentError(
                f"{name} takes at most {MAX_LISTED_TOKENS} tokens here, got {len(listed.ids)}", field=f"options.{name}"
            )
    try:
        options = options_from_proto(message)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="options.early_stopping") from error
    return DecodingOptions(**options)


def read_query(request: alignment_pb2.AlignTextRequest) -> AttentionQuery:
    """Give what attention a request asks for.

    Raises:
        InvalidArgumentError: there is no such kind.
    """
    try:
        kinds = kinds_from_proto(request.kinds)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="kinds") from error
    return AttentionQuery(
        kinds=kinds,
        layer=request.layer if request.HasField("layer") else None,
        head=request.head if request.HasField("head") else None,
        each_head=request.each_head,
    )


def deadline_in(remaining_s: float | None) -> float | None:
    """The moment of ``time.monotonic()`` that lies so many seconds ahead, or behind; None stays None."""
    return None if remaining_s is None else time.monotonic() + remaining_s
