"""Both clients against a scripted server: requests, errors, details, closing."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

import jumok
from jumok import _validation
from jumok._transport.servers import MAX_MESSAGE_BYTES
from jumok_proto.errors import parameter_name
from jumok_proto.v1 import alignment_pb2, decoding_pb2, translation_pb2
from jumok_serve.errors import BundleError, ModelFailedError
from tests.clients.conftest import served
from tests.support.clients import Call, await_, wait
from tests.support.servers.scripted import TIMINGS, Scripted, capitals, itself, length

both = pytest.mark.parametrize("call", [wait, await_])
both_translate = pytest.mark.parametrize("translate", [partial(wait, "translate"), partial(await_, "translate")])
Translate = Callable[..., Any]
EVERYTHING: dict[str, Any] = {"source_language": "en", "target_language": "de", "truncate": True, "model": "m"}
SENT: dict[str, Any] = {"source_language_code": "en", "target_language_code": "de", "truncate": True, "model": "m"}


@both_translate
def test_a_text_gives_a_translation_and_a_sequence_a_list(translate: Translate, address: str) -> None:
    assert translate(address, "a") == capitals("a")
    assert translate(address, ["a", "b"]) == [capitals("a"), capitals("b")]
    assert translate(address, ("a",)) == [capitals("a")]
    assert translate(address, "a").timings == TIMINGS


@both_translate
def test_only_what_is_set_is_sent(translate: Translate, address: str, service: Scripted) -> None:
    options: dict[str, Any] = {
        "beam_size": 4,
        "num_hypotheses": 2,
        "length_penalty": 0.5,
        "early_stopping": "never",
        "min_length": 0,
        "max_length": 9,
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 2.0,
        "suppress_tokens": [7, 8],
        "end_tokens": (3,),
        "forced_first_token": 0,
        "sample": False,
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 2**40,
        "coverage_penalty": 1.0,
        "replace_unknowns": True,
    }
    of_numpy = {"beam_size": np.int64(4), "length_penalty": np.float32(0.5), "end_tokens": (np.int64(3),)}
    whole = {"repetition_penalty": 2, "top_p": 1, "coverage_penalty": 1}
    translate(address, "a")
    translate(address, "a", **(options | of_numpy | whole), target_prefix="Ein", attention=True, **EVERYTHING)
    plain, full = service.requests
    assert plain == translation_pb2.TranslateTextRequest(
        contents=["a"], options=decoding_pb2.DecodingOptions(), split_sentences=True, keep_placeholders=True
    )
    sent = {
        "early_stopping": decoding_pb2.EARLY_STOPPING_NEVER,
        "suppress_tokens": decoding_pb2.TokenIds(ids=[7, 8]),
        "end_tokens": decoding_pb2.TokenIds(ids=[3]),
    }
    assert full == translation_pb2.TranslateTextRequest(
        contents=["a"],
        options=decoding_pb2.DecodingOptions(**(options | sent)),
        target_prefixes=["Ein"],
        attention=True,
        keep_placeholders=True,
        **SENT,
    )


@both
def test_a_pair_gives_a_score_and_sequences_a_list(call: Call, address: str, service: Scripted) -> None:
    assert call("score", address, "a", "bc") == length("bc")
    found = call("score", address, ["a", "b"], ("c", "de"), length_penalty=0, **EVERYTHING)
    assert found == [length("c"), length("de")]
    plain, full = service.score_requests
    assert plain == translation_pb2.ScoreTextRequest(contents=["a"], targets=["bc"])
    assert full == translation_pb2.ScoreTextRequest(
        contents=["a", "b"], targets=["c", "de"], length_penalty=0.0, **SENT
    )


@both
def test_a_text_has_an_alignment_and_sequences_a_list(call: Call, address: str, service: Scripted) -> None:
    assert call("align", address, "a") == itself("a")
    assert call("align", address, "a", "b", layer=0) == itself("a")
    asked: dict[str, Any] = {"kinds": ("encoder", "decoder"), "head": 3, "each_head": True}
    assert call("align", address, ["a", "b"], [None, "c"], **asked, **EVERYTHING) == [itself("a"), itself("b")]
    plain, given, full = service.align_requests
    cross = [alignment_pb2.ATTENTION_KIND_CROSS]
    assert plain == alignment_pb2.AlignTextRequest(contents=["a"], kinds=cross)
    assert given == alignment_pb2.AlignTextRequest(contents=["a"], targets=["b"], kinds=cross, layer=0)
    assert full == alignment_pb2.AlignTextRequest(
        contents=["a", "b"],
        targets=["", "c"],
        kinds=[alignment_pb2.ATTENTION_KIND_ENCODER, alignment_pb2.ATTENTION_KIND_DECODER],
        head=3,
        each_head=True,
        **SENT,
    )


@both_translate
def test_every_text_has_its_own_prefix_or_none(translate: Translate, address: str, service: Scripted) -> None:
    translate(address, ["a", "b", "c"], target_prefix=["A", None, ""])
    assert list(service.requests[0].target_prefixes) == ["A", "", ""]


@both_translate
def test_an_unknown_option_is_a_type_error(translate: Translate, address: str, service: Scripted) -> None:
    with pytest.raises(TypeError, match="no such option: beams, patience; decoding options are beam_size, "):
        translate(address, "a", beams=3, patience=1.0, beam_size=2)
    assert service.requests == []


WRONG_OPTIONS: dict[str, tuple[Any, ...]] = {
    "beam_size": ("many", True, 2.5, 2**31),
    "num_hypotheses": ("1",),
    "length_penalty": ("1", 10**400),
    "early_stopping": ("sometimes", 1),
    "min_length": (-(2**40),),
    "max_length": (1j,),
    "no_repeat_ngram_size": (1.5,),
    "repetition_penalty": ("2",),
    "suppress_tokens": (7, "78", [7, None]),
    "end_tokens": (["3"], [2**31]),
    "forced_first_token": ("3",),
    "sample": (1,),
    "temperature": ("hot",),
    "top_k": (2.0,),
    "top_p": ("1",),
    "seed": (2**63,),
    "coverage_penalty": ("1",),
    "replace_unknowns": (1,),
}
REFUSED: dict[str, list[tuple[tuple[Any, ...], dict[str, Any], str]]] = {
    "translate": [
        ((["a", "b\ud800c"],), {}, "contents[1]"),
        (("\udfff",), {}, "contents[0]"),
        ((["a", b"b"],), {}, "contents[1]"),
        ((b"ab",), {}, "contents[0]"),
        ((5,), {}, "contents"),
        ((None,), {}, "contents"),
        (({"a", "b"},), {}, "contents"),
        (({"a": "b"},), {}, "contents"),
        (({"a": "b"}.values(),), {}, "contents"),
        ((iter(["a"]),), {}, "contents"),
        *((("a",), {name: value}, f"options.{name}") for name in WRONG_OPTIONS for value in WRONG_OPTIONS[name]),
        (("a",), {"source_language": 3}, "source_language_code"),
        (("a",), {"target_language": "\udc80"}, "target_language_code"),
        (("a",), {"target_prefix": ["A"]}, "target_prefixes[0]"),
        (("a",), {"target_prefix": b"A"}, "target_prefixes[0]"),
        ((["a", "b"],), {"target_prefix": "A"}, "target_prefixes"),
        ((["a", "b"],), {"target_prefix": ["A"]}, "target_prefixes"),
        ((["a", "b"],), {"target_prefix": ["A", "\udc80"]}, "target_prefixes[1]"),
        (("a",), {"attention": 1}, "attention"),
        (("a",), {"truncate": "no"}, "truncate"),
        (("a",), {"model": "\udc80"}, "model"),
        (("a",), {"timeout_s": 0}, "timeout_s"),
        (("a",), {"timeout_s": "1"}, "timeout_s"),
        (("a",), {"timeout_s": float("nan")}, "timeout_s"),
    ],
    "score": [
        (("a", ["b"]), {}, "targets"),
        ((["a"], "b"), {}, "targets"),
        ((["a", "b"], ["c"]), {}, "targets"),
        ((["a", "b"], ["c", 4]), {}, "targets[1]"),
        (({"a"}, ["c"]), {}, "contents"),
        ((["a"], {"c"}), {}, "targets"),
        ((["a"], {"c": "d"}), {}, "targets"),
        ((["a", "\udc80"], ["c", "d"]), {}, "contents[1]"),
        (("a", "b"), {"length_penalty": "1"}, "length_penalty"),
        (("a", "b"), {"truncate": 1}, "truncate"),
        (("a", "b"), {"target_language": 7}, "target_language_code"),
        (("a", "b"), {"timeout_s": -1}, "timeout_s"),
    ],
    "align": [
        (("a", ["b"]), {}, "targets[0]"),
        ((["a"], "b"), {}, "targets"),
        ((["a", "b"], ["c"]), {}, "targets"),
        ((["a", "b"], [None, 4]), {}, "targets[1]"),
        (({"a"},), {}, "contents"),
        ((["a"], {"b"}), {}, "targets"),
        ((["a", "\udc80"],), {}, "contents[1]"),
        (("a",), {"kinds": "cross"}, "kinds"),
        (("a",), {"kinds": []}, "kinds"),
        (("a",), {"kinds": {"cross"}}, "kinds"),
        (("a",), {"kinds": ["self"]}, "kinds"),
        (("a",), {"layer": "1"}, "layer"),
        (("a",), {"layer": 2**31}, "layer"),
        (("a",), {"head": 1.5}, "head"),
        (("a",), {"each_head": 1}, "each_head"),
        (("a",), {"timeout_s": -1}, "timeout_s"),
    ],
}
"""Arguments that no request takes, by method, and the field that is to blame."""


@both
@pytest.mark.parametrize(
    ("method", "arguments", "options", "blamed"), [(method, *row) for method in REFUSED for row in REFUSED[method]]
)
def test_bad_arguments_are_refused_by_field(
    call: Call, address: str, service: Scripted, method: str, arguments: Any, options: dict[str, Any], blamed: str
) -> None:
    with pytest.raises(jumok.InvalidArgumentError) as caught:
        call(method, address, *arguments, **options)
    error = caught.value
    assert error.field == blamed
    assert str(error).startswith(f"{parameter_name(blamed)}: ")
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert not error.retryable
    assert service.requests == service.score_requests == service.align_requests == []


ARRIVING: Sequence[tuple[jumok.JumokError, bool]] = [
    (jumok.InvalidArgumentError("contents[3]: bad", field="contents[3]"), False),
    (jumok.ModelNotFoundError.of("x", ["a", "b"]), False),
    (jumok.BundleNotFoundError.of("x", []), False),
    (jumok.LanguageNotFoundError("source_language_code: no 'x'", field="source_language_code"), False),
    (jumok.AttentionUnavailableError.of("x"), False),
    (jumok.ScoringUnavailableError.of("x"), False),
    (jumok.SamplingUnavailableError.of("x"), False),
    (jumok.BundleNotLoadedError("bundle x: broken"), False),
    (jumok.OverloadedError("full", retry_after_s=0.25), True),
    (jumok.RateLimitedError("too fast", retry_after_s=0.25), True),
    (jumok.UnavailableError("draining", retry_after_s=3), True),
    (jumok.EngineFailedError("failed", retry_after_s=3), True),
    (jumok.DeadlineExceededError("late"), False),
    (jumok.UnauthenticatedError("no token"), False),
    (jumok.PermissionDeniedError("no scope"), False),
]


@both_translate
@pytest.mark.parametrize(("raised", "retryable"), ARRIVING, ids=lambda case: getattr(case, "reason", None))
def test_an_error_of_the_server_arrives_as_it_was_raised(
    translate: Translate, address: str, service: Scripted, raised: jumok.JumokError, retryable: bool
) -> None:
    service.error = raised
    with pytest.raises(jumok.JumokError) as caught:
        translate(address, "a")
    error = caught.value
    assert type(error) is type(raised)
    expected = str(raised).replace("contents[3]", "texts[3]").replace("language_code", "language")
    if isinstance(raised, jumok.UnauthenticatedError):
        expected += f"; give this caller's token (token, --token, JUMOK_TOKEN) to the client of {address}"
    assert str(error) == expected
    assert (error.code, error.reason, error.field) == (raised.code, raised.reason, raised.field)
    assert (error.retryable, error.retry_after_s) == (retryable, raised.retry_after_s)
    assert error.request_id == "id-1"
    assert error.details.resource == raised.details.resource
    assert error.__suppress_context__
    assert isinstance(error.__context__, grpc.RpcError)


@both_translate
@pytest.mark.parametrize(
    "raised", [BundleError("/srv/secret", ["broken"]), ModelFailedError("secret"), KeyError("secret")]
)
def test_a_fault_of_the_server_is_an_internal_error(
    translate: Translate, address: str, service: Scripted, raised: Exception
) -> None:
    service.error = raised
    with pytest.raises(jumok.InternalError) as caught:
        translate(address, "a")
    assert (caught.value.reason, caught.value.request_id) == ("INTERNAL", "id-1")
    assert "secret" not in str(caught.value)
    assert "id-1" in str(caught.value)


@both_translate
def test_a_call_that_a_proxy_has_lost_can_be_repeated(translate: Translate, address: str, service: Scripted) -> None:
    """A fault of a server has details; without, its proxy speaks, as Ray's for a replica that was killed."""
    service.lost = ["The actor died unexpectedly.\n\tclass_name: Replica"] * 2
    with pytest.raises(
        jumok.UnavailableError, match=r"lost between .* and a server: The actor died unexpectedly\.$"
    ) as caught:
        translate(address, "a")
    assert caught.value.retryable
    with jumok.Client(address) as client:
        assert client.translate("a") == capitals("a")
    assert len(service.requests) == 3


def test_a_parameter_is_named_as_the_caller_wrote_it() -> None:
    fields = ("options.beam_size", "contents[3]", "content", "target_prefixes[0]", "source_language_code", "model")
    names = ["beam_size", "texts[3]", "text", "target_prefix[0]", "source_language", "model"]
    assert [parameter_name(field) for field in fields] == names


def test_a_message_that_is_too_large_is_not_sent_again(address: str, service: Scripted) -> None:
    with (
        jumok.Client(address) as client,
        pytest.raises(jumok.ResourceExhaustedError, match="larger than max") as caught,
    ):
        client.translate("a" * (MAX_MESSAGE_BYTES + 1))
    assert not caught.value.retryable
    assert caught.value.retry_after_s is None
    assert service.requests == []


@both
@pytest.mark.parametrize(
    ("method", "arguments", "answers"),
    [
        ("translate", [["a", "b"]], "translations"),
        ("score", [["a", "b"], ["c", "d"]], "scores"),
        ("align", [["a", "b"]], "alignments"),
        ("detect_language", [["a", "b"]], "results"),
    ],
)
def test_a_response_of_another_length_is_an_error(
    call: Call, address: str, service: Scripted, method: str, arguments: list[Any], answers: str
) -> None:
    service.drop_answers = True
    with pytest.raises(jumok.InternalError, match=f"answered 2 texts with 0 {answers}"):
        call(method, address, *arguments)


def test_a_method_that_the_server_lacks_is_unimplemented(address: str) -> None:
    with pytest.raises(jumok.UnimplementedError), jumok.Client(address) as client:
        client.list_models()


def test_a_closed_client_refuses_to_call(address: str) -> None:
    client = jumok.Client(address)
    assert client.translate("a") == capitals("a")
    client.close()
    client.close()
    with pytest.raises(ValueError, match="the client is closed"):
        client.translate("a")

    async def scenario() -> None:
        async_client = jumok.AsyncClient(address)
        await async_client.close()
        await async_client.close()
        with pytest.raises(ValueError, match="the client is closed"):
            await async_client.list_models()

    asyncio.run(scenario())


def test_garbled_details_do_not_hide_the_status() -> None:
    class Garbled(Scripted):
        def TranslateText(
            self, request: translation_pb2.TranslateTextRequest, context: grpc.ServicerContext
        ) -> translation_pb2.TranslateTextResponse:
            details: Any = (("grpc-status-details-bin", b"\xff\xff"),)
            context.set_trailing_metadata(details)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "")

    with (
        served(Garbled()) as address,
        pytest.raises(jumok.PermissionDeniedError, match="failed with PERMISSION_DENIED"),
    ):
        wait("translate", address, "a")


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300, 10**30])
def test_a_timeout_beyond_grpcs_clock_is_bounded(timeout_s: float) -> None:
    assert _validation.check_timeout(timeout_s) == _validation.LONGEST_TIMEOUT_S


def test_texts_of_a_wrong_type_are_refused() -> None:
    message = "must be a str, or a sequence of them for several texts, got 5"
    with pytest.raises(jumok.InvalidArgumentError, match=message):
        wait("translate", "unused:1", 5)
