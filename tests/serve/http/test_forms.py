"""Forms, compared with Python's reader of query strings."""

import random
from urllib.parse import parse_qs, quote_from_bytes

import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.http.requests import MAX_FORM_FIELDS, parse_form

PIECE = 2**16
"""Bytes that are unquoted at once."""


def expected(source: bytes) -> dict[str, list[str]]:
    return parse_qs(source.decode(), keep_blank_values=True, errors="strict")


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"&",
        b"a",
        b"=b",
        b"a=",
        b"a=b&a=c",
        b"a+b=c+d",
        b"%",
        b"a=%4",
        b"a=%zz%41",
        b"a=%e4%b8%80",
        b"a==b=",
        b"a;b=c",
        b"a=\xed\x95\x9c+%ed%95%9c",
    ],
)
def test_short_forms(source: bytes) -> None:
    assert parse_form(source) == expected(source)


@pytest.mark.parametrize("seed", range(20))
def test_random_forms(seed: int) -> None:
    chosen = random.Random(seed)
    texts = ["".join(chosen.choices("ab %&=+;ä한\U0001f600", k=chosen.randrange(30))) for _ in range(20)]
    source = "&".join(quote_from_bytes(text.encode(), safe="&=") for text in texts).encode()
    assert parse_form(source) == expected(source)


@pytest.mark.parametrize("before", range(PIECE - 4, PIECE + 2))
@pytest.mark.parametrize("escapes", [b"%41", b"%ed%95%9c", b"%f0%9f%98%80"])
def test_no_escape_is_divided_between_pieces(before: int, escapes: bytes) -> None:
    source = b"q=" + b"a" * before + escapes * 3 + b"b" * PIECE + escapes
    assert parse_form(source) == expected(source)


@pytest.mark.parametrize("source", [b"q=%ff", b"q=\xff", b"q=%ed%a0%80", b"&".join([b"q=a"] * (MAX_FORM_FIELDS + 1))])
def test_forms_that_are_none(source: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="no form of at most"):
        parse_form(source)
