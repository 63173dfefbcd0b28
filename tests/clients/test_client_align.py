"""``align`` of both clients against a scripted server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import jumok
from jumok_proto.v1 import alignment_pb2
from tests.support.servers.scripted import Scripted, itself


def align_wait(address: str, *arguments: Any, **options: Any) -> Any:
    with jumok.Client(address) as client:
        return client.align(*arguments, **options)


def align_await(address: str, *arguments: Any, **options: Any) -> Any:
    async def scenario() -> Any:
        async with jumok.AsyncClient(address) as client:
            return await client.align(*arguments, **options)

    return asyncio.run(scenario())


both_align = pytest.mark.parametrize("align", [align_wait, align_await])


@both_align
def test_a_text_gives_an_alignment_and_sequences_a_list(
    align: Callable[..., Any], address: str, service: Scripted
) -> None:
    assert align(address, "a") == itself("a")
    assert align(address, "a", "b", layer=0) == itself("a")
    everything = {"source_language": "en", "target_language": "de", "truncate": True, "model": "m"}
    asked = {"kinds": ("encoder", "decoder"), "head": 3, "each_head": True}
    assert align(address, ["a", "b"], [None, "c"], **asked, **everything) == [itself("a"), itself("b")]
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
        source_language_code="en",
        target_language_code="de",
        truncate=True,
        model="m",
    )


@both_align
@pytest.mark.parametrize(
    ("arguments", "options", "blamed"),
    [
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
)
def test_bad_arguments_of_align_are_refused_by_field(
    align: Callable[..., Any], address: str, service: Scripted, arguments: Any, options: Any, blamed: str
) -> None:
    with pytest.raises(jumok.InvalidArgumentError) as caught:
        align(address, *arguments, **options)
    assert caught.value.field == blamed
    assert service.align_requests == []


@both_align
def test_as_many_alignments_as_texts_are_expected(align: Callable[..., Any], address: str, service: Scripted) -> None:
    service.drop_answers = True
    with pytest.raises(jumok.InternalError, match="answered 2 texts with 0 alignments"):
        align(address, ["a", "b"])
