"""Streams of a real model: stable texts are prefixes of the final translation, which equals that of TranslateText."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

import jumok
from jumok_proto.conversion import timings_from_proto, translation_from_proto
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.decoding_pb2 import DecodingOptions as Options
from jumok_serve.engine.engine import MAX_SPARES
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate, wait_until_idle
from tests.serve.engine.test_invariance import sentences
from tests.serve.service.handlers.test_service_translator import check_same
from tests.support.hang import wait_until
from tests.support.servers.fake_model import Ended, stub_of
from tests.support.servers.in_process_server import check_idle, serving

TEXTS = ["a man in a blue shirt", "", "two young males", "女孩 😀 ﷽ नमस्ते", *sentences()[:20]]


@pytest.fixture
def fresh(tiny_bundle: Path) -> Iterator[tuple[Translator, str]]:
    """A model for a gate, and the address of its server."""
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as opened, serving(opened) as address:
        yield opened, address


def streamed(stub: Any, text: str, **asked: Any) -> list[pb.StreamTranslateTextResponse]:
    return list(stub.StreamTranslateText(pb.StreamTranslateTextRequest(content=text, truncate=True, **asked)))


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "num_hypotheses": 2},
        {"beam_size": 3, "length_penalty": -1.0, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
        {"sample": True, "temperature": 1.5, "seed": 7, "num_hypotheses": 3, "max_length": 12},
    ],
)
def test_a_stream_ends_with_the_translation_and_begins_it(
    translator: Translator, address: str, options: dict[str, Any]
) -> None:
    expected = translator.translate(TEXTS, truncate=True, **options)
    early = 0
    with grpc.insecure_channel(address) as channel:
        stub = stub_of(channel)
        for text, wanted in zip(TEXTS, expected, strict=True):
            messages = streamed(stub, text, options=Options(**options))
            assert all(len(after.stable_text) > len(before.stable_text) for before, after in pairwise(messages[:-1]))
            assert all(messages[-1].stable_text.startswith(message.stable_text) for message in messages)
            assert [message.HasField("translation") for message in messages] == [*[False] * (len(messages) - 1), True]
            last = messages[-1]
            check_same([translation_from_proto(last.translation, timings_from_proto(last.timings))], [wanted])
            assert last.stable_text == wanted.text
            early += len(messages) > 1
    assert early > len(TEXTS) / 2
    check_idle(translator)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 3, "coverage_penalty": 0.5},
        {"beam_size": 1, "replace_unknowns": True, "forced_first_token": 1, "max_length": 8},
        {"beam_size": 2, "replace_unknowns": True},
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_a_stream_shows_no_text_that_attention_changes(
    translator: Translator, address: str, options: dict[str, Any], split: bool
) -> None:
    text = "A dog runs. The cat sleeps."
    wanted = translator.translate(text, split_sentences=split, **options)
    with grpc.insecure_channel(address) as channel:
        messages = streamed(stub_of(channel), text, split_sentences=split, options=Options(**options))
    assert messages[-1].stable_text == wanted.text
    assert all(messages[-1].stable_text.startswith(message.stable_text) for message in messages)


def test_greedy_tokens_come_one_by_one(fresh: tuple[Translator, str]) -> None:
    """Steps one at a time, each after its text was read; tokens of the target prefix come first."""
    translator, address = fresh
    tokenizer = translator.tokenizer
    options: dict[str, Any] = {"beam_size": 1, "min_length": 9, "max_length": 9}
    (best,) = translator.translate(TEXTS[0], target_prefix="Ein Mann", **options).hypotheses
    prefix = tokenizer.encode_target("Ein Mann")
    # Or the next greedy search would take the batch that it has kept, whose steps have no gate.
    for beam_size in range(2, 2 + MAX_SPARES):
        translator.translate(TEXTS[0], beam_size=beam_size)
    gate = Gate(translator)
    with grpc.insecure_channel(address) as channel:
        stub = stub_of(channel)
        call = stub.StreamTranslateText(
            pb.StreamTranslateTextRequest(content=TEXTS[0], target_prefix="Ein Mann", options=Options(**options))
        )
        gate.arrive()
        shown = ""
        for _ in prefix:
            gate.step()
        for written in range(1, 9):
            gate.step()
            sure = tokenizer.decode_stable([*prefix, *best.token_ids[:written]])
            if len(sure) > len(shown):
                shown = sure
                assert next(call).stable_text == shown
        gate.open()
        assert len(shown) > len("Ein Mann")
        assert [message.stable_text for message in call][-1] == best.text


def test_a_text_without_progress_callback_costs_nothing(translator: Translator) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jumok_serve.search.search.BeamSearch.stable_tokens", lambda _: 1 / 0)
        assert translator.translate(TEXTS[0], beam_size=3).text


def corpus(stub: Any, texts: list[str], **settings: Any) -> Iterator[pb.CorpusResult]:
    def requests() -> Iterator[pb.TranslateCorpusRequest]:
        yield pb.TranslateCorpusRequest(settings=pb.CorpusSettings(truncate=True, **settings))
        for start in range(0, len(texts), 50):
            items = enumerate(texts[start : start + 50], start=start)
            yield pb.TranslateCorpusRequest(items=[pb.CorpusItem(id=number, content=text) for number, text in items])

    for message in stub.TranslateCorpus(requests()):
        yield from message.results


@pytest.mark.parametrize("order", [pb.CORPUS_ORDER_INPUT, pb.CORPUS_ORDER_COMPLETION])
def test_a_corpus_is_translated_as_its_texts_are(translator: Translator, address: str, order: Any) -> None:
    good = sentences()
    texts = [*good, "bad \0 text"] * 8
    alone = translator.translate(good, truncate=True, beam_size=1, max_length=8)
    expected = dict(zip(good, alone, strict=True))
    with grpc.insecure_channel(address) as channel:
        found = list(
            corpus(stub_of(channel), texts, options=Options(beam_size=1, max_length=8), order=order, window=64)
        )
    ids = [result.id for result in found]
    assert sorted(ids) == list(range(len(texts)))
    assert (ids == sorted(ids)) == (order == pb.CORPUS_ORDER_INPUT)
    for result in found:
        text = texts[result.id]
        if text in expected:
            check_same(
                [translation_from_proto(result.translation, timings_from_proto(result.timings))], [expected[text]]
            )
        else:
            assert result.error.message.startswith("content: ")
    check_idle(translator)


def test_a_client_that_is_killed_frees_rows_and_queue(tiny_bundle: Path) -> None:
    program = """
import jumok_proto.v1.translation_pb2 as pb, grpc, sys
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
items = [pb.CorpusItem(id=number, content="a man in a blue shirt") for number in range(600)]
stub = TranslationServiceStub(grpc.insecure_channel(sys.argv[1]))
options = DecodingOptions(beam_size=2, min_length=40, max_length=40)
first = pb.TranslateCorpusRequest(settings=pb.CorpusSettings(window=600, options=options), items=items)
stream = stub.StreamTranslateText(pb.StreamTranslateTextRequest(content="two young males"))
call = stub.TranslateCorpus(iter([first, pb.TranslateCorpusRequest(items=items)]))
next(call)
"""
    observer = Ended()
    with (
        Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator,
        serving(translator, observers=[observer]) as address,
    ):
        gate = Gate(translator)
        with subprocess.Popen([sys.executable, "-c", program, address]) as client:
            gate.arrive()
            with jumok.Client(address) as other:  # what came before is read when this is answered
                while translator.load().queued_requests + translator.load().running_sentences < 601:
                    assert client.poll() is None
                    other.list_models()
            client.kill()
        wait_until(lambda: sum(call.code == "CANCELLED" for call in observer.calls) == 2)
        gate.open()
        wait_until_idle(translator)
        assert sum(gate.rows) < 600 * 2 * 40 / 4
