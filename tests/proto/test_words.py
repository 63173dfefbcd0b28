"""Words of pieces, for all spellings."""

import pytest

from jumok_proto.words import spelling, words

METASPACE = ["▁Two", "▁men", "▁play", "ing", "▁", "chess", "."]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (METASPACE, ["Two", "men", "playing", "chess."]),
        (["Two", "Ġmen", "Ġplay", "ing", "."], ["Two", "men", "playing."]),
        (["ĠGr", "Ã¼", "n", "ĠìĤ¬", "ëŀĳ", "ĠâĤ¬"], ["Grün", "사랑", "€"]),
        (["two", "men", "play", "##ing", "chess"], ["two", "men", "playing", "chess"]),
        (["two</w>", "play", "ing</w>", ".</w>"], ["two", "playing", "."]),
        (["two", "play@@", "ing", "."], ["two", "playing", "."]),
        (["two▁", "play", "ing▁", "chess", "."], ["two", "playing", "chess."]),
        (["▁a", "<0xE2>", "<0x82>", "<0xAC>", "▁b"], ["a€", "b"]),
        (["▁a", "▁##", "x@@", "▁Ġorġ"], ["a", "##x@@", "Ġorġ"]),
        (["two", "men"], ["two", "men"]),
        ([], []),
    ],
)
def test_pieces_are_joined_by_their_spelling(pieces: list[str], expected: list[str]) -> None:
    assert [text for text, _ in words(pieces, [False] * len(pieces), spelling(pieces))] == expected


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["▁日本語", "の", "文", "です", "。"], ["日本語", "の", "文", "です。"]),
        (["▁", "「", "はい", "」", "と", "言", "った", "。", "「"], ["「はい」", "と", "言", "った。", "「"]),
        (["▁スキ", "ー", "、", "人", "々"], ["スキー、", "人々"]),
        (["▁我", "喜欢", "Py", "thon", "\uff0c", "和", "▁C"], ["我", "喜欢", "Python\uff0c", "和", "C"]),
        (["▁2026", "年", "(", "笑", ")"], ["2026", "年", "(笑)"]),
        (["▁สวัส", "ดี", "ค", "รับ"], ["สวัส", "ดี", "ค", "รับ"]),
        (["▁ก", "ิน"], ["กิน"]),
        (["▁나는", "학생", "이다"], ["나는학생이다"]),
        (["▁a", "<0xE6>", "<0x97>", "<0xA5>", "<0xE6>", "<0x9C>", "<0xAC>"], ["a", "日", "本"]),
        (["Ġæ", "Ĺ", "¥", "æľ¬", "è", "ª", "ŀ", "Ġok"], ["日", "本", "語", "ok"]),
        (["Ġ", "æĹ¥", "æľ¬"], ["日", "本"]),
        (["日本</w>", "語", "学</w>"], ["日本", "語", "学"]),
        (["日本@@", "語", "学"], ["日本", "語", "学"]),
    ],
)
def test_pieces_of_scripts_without_spaces_are_words(pieces: list[str], expected: list[str]) -> None:
    found = words(pieces, [False] * len(pieces), spelling(pieces))
    assert [text for text, _ in found] == expected
    assert [index for _, part in found for index in part] == list(range(len(pieces)))


def test_words_have_ranges_and_special_tokens_stay_separate() -> None:
    pieces = [">>deu<<", "A", "b", *METASPACE, "</s>", "de_DE"]
    special = [True, *[False] * 9, True, True]
    found = words(pieces, special, spelling(METASPACE))
    assert found == [
        (">>deu<<", range(1)),
        ("Ab", range(1, 3)),
        ("Two", range(3, 4)),
        ("men", range(4, 5)),
        ("playing", range(5, 7)),
        ("chess.", range(7, 10)),
        ("</s>", range(10, 11)),
        ("de_DE", range(11, 12)),
    ]


def test_bytes_are_spelled_as_gpt_2_spells_them() -> None:
    """Against the library that writes such pieces."""
    tokenizers = pytest.importorskip("tokenizers")
    text = "Grün wie 사랑 — 😀\tok" + "".join(map(chr, range(0xA0, 0x180)))
    spelled = [piece for piece, _ in tokenizers.pre_tokenizers.ByteLevel(use_regex=True).pre_tokenize_str(text)]
    found = words(spelled, [False] * len(spelled), spelling(spelled))
    assert "".join(word for word, _ in found).replace("\u00a0", "") == "".join(text.split(" ")).replace("\u00a0", "")
