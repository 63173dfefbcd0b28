"""Many concurrent callers: correct results in order, and an idle engine at the end."""

import random
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import jumok
from jumok_proto.v1 import decoding_pb2, translation_pb2, translation_pb2_grpc
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import PATIENCE_S, Gate
from tests.support.servers.in_process_server import IDLE, check_idle, serving

CLIENTS = 32
SENTENCES = 100
WORDS = "a the two old young man dog girl runs reads plays in on with red street park book and big hat snow".split()  # noqa: SIM905


def sentences(client: int) -> list[str]:
    """Sentences of a client, 1 to 12 words."""
    generator = random.Random(client)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 12))) for _ in range(SENTENCES)]


def test_every_client_gets_its_own_answers_in_order(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=2) as translator, serving(translator) as address:
        expected = {
            client: translator.translate(sentences(client), beam_size=1 + client % 3, truncate=True)
            for client in range(CLIENTS)
        }
        barrier = threading.Barrier(CLIENTS)

        def call(client: int) -> list[jumok.Translation]:
            texts = sentences(client)
            generator = random.Random(client)
            answers: list[jumok.Translation] = []
            with jumok.Client(address) as connected:
                barrier.wait(PATIENCE_S)
                while len(answers) < SENTENCES:
                    some = texts[len(answers) : len(answers) + generator.randint(1, 40)]
                    answers += connected.translate(some, beam_size=1 + client % 3, truncate=True)
            return answers

        with ThreadPoolExecutor(CLIENTS) as clients:
            for client, answers in enumerate(clients.map(call, range(CLIENTS))):
                assert [answer.text for answer in answers] == [answer.text for answer in expected[client]]
                assert [answer.hypotheses[0].token_ids for answer in answers] == [
                    answer.hypotheses[0].token_ids for answer in expected[client]
                ]
        check_idle(translator)


def test_a_cancelled_call_frees_its_rows_within_one_step(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator, serving(translator) as address:
        gate = Gate(translator)
        with grpc.insecure_channel(address) as channel:
            stub = translation_pb2_grpc.TranslationServiceStub(channel)
            call = stub.TranslateText.future(
                translation_pb2.TranslateTextRequest(
                    contents=["a dog", "a man"],
                    options=decoding_pb2.DecodingOptions(beam_size=3, min_length=20, max_length=20),
                )
            )
            gate.arrive()
            sentences = list(translator._engine._replicas[0].batches[3, False].sentences)
            assert translator.load().rows == 6
            call.cancel()  # type: ignore[no-untyped-call]
            for sentence in sentences:  # the server has heard of it once the futures are cancelled
                with pytest.raises(CancelledError):
                    sentence.future.result(PATIENCE_S)
            gate.open()
        check_idle(translator)
        assert translator.load() == IDLE
        assert gate.rows[0] == 6
        assert 6 not in gate.rows[1:]
