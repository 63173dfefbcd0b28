"""A server around CTranslate2: every request calls ``translate_batch`` in a thread.

With ``--batching``, each ``translate_batch`` gets all queued sentences. The server answers one method of jumok's
service with text and tokens only, so one client measures all.
"""

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import ctranslate2
import grpc
import sentencepiece

from jumok_proto.v1 import translation_pb2

END = "</s>"
GRACE_S = 1.0
MAX_BATCH_SIZE = 64

Translate = Callable[[list[str]], Awaitable[list[str]]]
"""Translates the pieces of one sentence, which ends with ``END``; returns those of the translation without it."""


class Decode(Protocol):
    """Decodes a batch; returns the pieces of the best hypotheses."""

    def __call__(self, sources: Sequence[Sequence[str]], /, *, max_batch_size: int = 0) -> list[list[str]]:
        """See ``translate_batch`` of CTranslate2 for ``max_batch_size``."""


def plain(decode: Decode, workers: int) -> Translate:
    """Decode each sentence in a thread."""
    # Twice as many as CTranslate2 decodes at a time: it finds the next sentence in its own queue.
    threads = ThreadPoolExecutor(2 * workers)

    async def translate(source: list[str]) -> list[str]:
        [pieces] = await asyncio.get_running_loop().run_in_executor(threads, decode, [source])
        return pieces

    return translate


def batching(decode: Decode, workers: int) -> Translate:
    """Decode one batch after another of the queued sentences, split among CTranslate2's workers."""
    queue: asyncio.Queue[tuple[list[str], asyncio.Future[list[str]]]] = asyncio.Queue()

    async def work() -> None:
        while True:
            batch = [await queue.get()]
            while len(batch) < MAX_BATCH_SIZE and not queue.empty():
                batch.append(queue.get_nowait())
            batch = [(source, outcome) for source, outcome in batch if not outcome.done()]  # cancelled calls
            if not batch:
                continue
            sources = [source for source, _ in batch]
            try:
                decoded = await asyncio.to_thread(decode, sources, max_batch_size=-(-len(batch) // workers))
            except RuntimeError as error:
                for _, outcome in batch:
                    if not outcome.done():
                        outcome.set_exception(error)
                continue
            for (_, outcome), pieces in zip(batch, decoded, strict=True):
                if not outcome.done():
                    outcome.set_result(pieces)

    worker = asyncio.create_task(work())

    async def translate(source: list[str]) -> list[str]:
        assert not worker.done()
        outcome: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        queue.put_nowait((source, outcome))
        return await outcome

    return translate


async def serve(arguments: argparse.Namespace) -> None:
    """Serve on a free port until SIGTERM or Ctrl-C; prints the address."""
    source_model, target_model = (
        sentencepiece.SentencePieceProcessor(model_file=str(path)) for path in (arguments.source, arguments.target)
    )
    translate = (batching if arguments.batching else plain)(decoder(arguments), arguments.inter_threads)

    async def answer(
        request: translation_pb2.TranslateTextRequest, context: object
    ) -> translation_pb2.TranslateTextResponse:
        [text] = request.contents
        source = [*source_model.encode(text, out_type=str), END]
        pieces = await translate(source)
        hypothesis = translation_pb2.Hypothesis(
            text=target_model.decode(pieces),
            tokens=[*pieces, END],
            finish_reason=translation_pb2.FINISH_REASON_EOS,
        )
        translation = translation_pb2.Translation(hypotheses=[hypothesis], source_token_count=len(source))
        return translation_pb2.TranslateTextResponse(translations=[translation])

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=translation_pb2.TranslateTextRequest.FromString,
        response_serializer=translation_pb2.TranslateTextResponse.SerializeToString,
    )
    name = translation_pb2.DESCRIPTOR.services_by_name["TranslationService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"TranslateText": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serving on 127.0.0.1:{port}: CTranslate2", flush=True)
    await stop.wait()
    await server.stop(GRACE_S)


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


def main() -> None:
    """Parse the arguments, named as CTranslate2's, and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of CTranslate2's converters")
    parser.add_argument("--batching", action="store_true", help="decode all queued sentences together")
    parser.add_argument("--source", type=Path, required=True, help="SentencePiece model of the texts")
    parser.add_argument("--target", type=Path, required=True, help="SentencePiece model of the translations")
    parser.add_argument("--inter-threads", type=int, default=1, help="batches at a time; default: %(default)s")
    parser.add_argument("--intra-threads", type=int, default=1, help="threads of a batch; default: %(default)s")
    parser.add_argument("--beam-size", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--max-decoding-length", type=int, default=128, help="default: %(default)s")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
