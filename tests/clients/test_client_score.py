"""``score`` of both clients against a scripted server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import jumok
from jumok_proto.v1 import translation_pb2
from tests.support.servers.scripted import Scripted, length


def score_wait(address: str, texts: Any, targets: Any, **options: Any) -> Any:
    with jumok.Client(address) as client:
        return client.score(texts, targets, **options)


def score_await(address: str, texts: Any, targets: Any, **options: Any) -> Any:
    async def scenario() -> Any:
        async with jumok.AsyncClient(address) as client:
            return await client.score(texts, targets, **options)

    return asyncio.run(scenario())


both_score = pytest.mark.parametrize("score", [score_wait, score_await])


@both_score
def test_a_pair_gives_a_score_and_sequences_a_list(score: Callable[..., Any], address: str, service: Scripted) -> None:
    assert score(address, "a", "bc") == length("bc")
    everything = {"source_language": "en", "target_language": "de", "truncate": True, "model": "m"}
    assert score(address, ["a", "b"], ("c", "de"), length_penalty=0, **everything) == [length("c"), length("de")]
    plain, full = service.score_requests
    assert plain == translation_pb2.ScoreTextRequest(contents=["a"], targets=["bc"])
    assert full == translation_pb2.ScoreTextRequest(
        contents=["a", "b"],
        targets=["c", "de"],
        source_language_code="en",
        target_language_code="de",
        length_penalty=0.0,
        truncate=True,
        model="m",
    )


@both_score
@pytest.mark.parametrize(
    ("texts", "targets", "options", "blamed"),
    [
        ("a", ["b"], {}, "targets"),
        (["a"], "b", {}, "targets"),
        (["a", "b"], ["c"], {}, "targets"),
        (["a", "b"], ["c", 4], {}, "targets[1]"),
        ({"a"}, ["c"], {}, "contents"),
        (["a"], {"c"}, {}, "targets"),
        (["a"], {"c": "d"}, {}, "targets"),
        (["a", "\udc80"], ["c", "d"], {}, "contents[1]"),
        ("a", "b", {"length_penalty": "1"}, "length_penalty"),
        ("a", "b", {"truncate": 1}, "truncate"),
        ("a", "b", {"target_language": 7}, "target_language_code"),
        ("a", "b", {"timeout_s": -1}, "timeout_s"),
    ],
)
def test_bad_arguments_of_score_are_refused_by_field(
    score: Callable[..., Any], address: str, service: Scripted, texts: Any, targets: Any, options: Any, blamed: str
) -> None:
    with pytest.raises(jumok.InvalidArgumentError) as caught:
        score(address, texts, targets, **options)
    assert caught.value.field == blamed
    assert service.score_requests == []


@both_score
def test_as_many_scores_as_texts_are_expected(score: Callable[..., Any], address: str, service: Scripted) -> None:
    service.drop_answers = True
    with pytest.raises(jumok.InternalError, match="answered 2 texts with 0 scores"):
        score(address, ["a", "b"], ["c", "d"])
