"""Arguments, tokenizer and messages that the servers around CTranslate2 share.

They answer jumok's messages with text, tokens and times only, so one client measures all.
"""

import argparse
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ctranslate2
import grpc
import sentencepiece
from google.protobuf.duration_pb2 import Duration

from jumok_proto.v1 import translation_pb2

END = "</s>"


@dataclass(frozen=True, kw_only=True)
class Translated:
    """The pieces of a translation without its end token, and the start of its decoding.

    The start is in ``time.monotonic()`` seconds.
    """

    pieces: Sequence[str]
    began: float


Translate = Callable[[list[str]], Awaitable[Translated]]
"""Translates the pieces of one sentence, which ends with ``END``."""


class Decode(Protocol):
    """Decodes a batch; returns the pieces of the best hypotheses."""

    def __call__(self, sources: Sequence[Sequence[str]], /, *, max_batch_size: int = 0) -> list[list[str]]:
        """See ``translate_batch`` of CTranslate2 for ``max_batch_size``."""


class Service:
    """Answers requests of one text each."""

    def __init__(self, source: Path, target: Path, translate: Translate) -> None:
        self._source = sentencepiece.SentencePieceProcessor(model_file=str(source))
        self._target = sentencepiece.SentencePieceProcessor(model_file=str(target))
        self._translate = translate

    async def answer(
        self,
        request: translation_pb2.TranslateTextRequest,
        context: grpc.aio.ServicerContext[translation_pb2.TranslateTextRequest, translation_pb2.TranslateTextResponse],
    ) -> translation_pb2.TranslateTextResponse:
        """Translate the text of a request."""
        arrived = time.monotonic()
        [text] = request.contents
        source = [*self._source.encode(text, out_type=str), END]
        translated = await self._translate(source)
        hypothesis = translation_pb2.Hypothesis(
            text=self._target.decode(list(translated.pieces)),
            tokens=[*translated.pieces, END],
            finish_reason=translation_pb2.FINISH_REASON_EOS,
        )
        now = time.monotonic()
        return translation_pb2.TranslateTextResponse(
            translations=[translation_pb2.Translation(hypotheses=[hypothesis], source_token_count=len(source))],
            timings=translation_pb2.Timings(
                queue_duration=_duration(translated.began - arrived),
                decode_duration=_duration(now - translated.began),
                total_duration=_duration(now - arrived),
            ),
        )


def _duration(seconds: float) -> Duration:
    return Duration(nanos=round(seconds % 1 * 1e9) % 10**9, seconds=int(seconds))


def read_arguments(description: str | None) -> argparse.Namespace:
    """Parse the servers' arguments, named as CTranslate2's."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of CTranslate2's converters")
    parser.add_argument("--source", type=Path, required=True, help="SentencePiece model of the texts")
    parser.add_argument("--target", type=Path, required=True, help="SentencePiece model of the translations")
    parser.add_argument("--inter-threads", type=int, default=1, help="batches at a time; default: %(default)s")
    parser.add_argument("--intra-threads", type=int, default=1, help="threads of a batch; default: %(default)s")
    parser.add_argument("--beam-size", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--max-decoding-length", type=int, default=128, help="default: %(default)s")
    return parser.parse_args()


def decoder(arguments: argparse.Namespace) -> Decode:
    """The model, in int8."""
    translator = ctranslate2.Translator(
        str(arguments.model),
        device="cpu",
        compute_type="int8",
        inter_threads=arguments.inter_threads,
        intra_threads=arguments.intra_threads,
    )

    def decode(sources: Sequence[Sequence[str]], /, *, max_batch_size: int = 0) -> list[list[str]]:
        results = translator.translate_batch(
            sources,
            max_batch_size=max_batch_size,
            beam_size=arguments.beam_size,
            max_decoding_length=arguments.max_decoding_length,
        )
        return [result.hypotheses[0] for result in results]

    return decode
