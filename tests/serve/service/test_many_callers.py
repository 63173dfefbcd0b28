"""Many concurrent callers: correct results in order, and an idle engine at the end."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

import jumok
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import PATIENCE_S, Gate
from tests.support.hang import wait_until
from tests.support.servers.fake_model import Ended, stub_of
from tests.support.servers.in_process_server import check_idle, serving

CLIENTS = 32
SENTENCES = 50
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
    observer = Ended()
    with (
        Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator,
        serving(translator, observers=[observer]) as address,
        grpc.insecure_channel(address) as channel,
    ):
        gate = Gate(translator)
        options = DecodingOptions(beam_size=3, min_length=20, max_length=20)
        request = TranslateTextRequest(contents=["a dog", "a man"], options=options)
        call = stub_of(channel).TranslateText.future(request)
        gate.arrive()
        assert translator.load().rows == 6
        call.cancel()
        wait_until(lambda: bool(observer.calls))
        gate.open()
        check_idle(translator)
        assert gate.rows[0] == 6
        assert 6 not in gate.rows[1:]
