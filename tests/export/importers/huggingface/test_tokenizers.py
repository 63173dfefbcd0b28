"""Imported tokenizers against those of transformers: tokens, texts and language tokens."""

import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART50_CODES

from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.tokenizers import TokenizerDescription
from jumok_serve.tokenizers import load_tokenizer
from jumok_serve.tokenizers.tokenizer import Tokenizer
from tests.support.checkpoints.tokenizer_checkpoints import (
    CHECKPOINTS,
    DIRECTIONS,
    NLLB_CODES,
    UNUSED,
    change,
    load_reference,
    read,
    size_of,
)

DESCRIPTION: TypeAdapter[TokenizerDescription] = TypeAdapter(TokenizerDescription)
TEXTS = (
    "The cat is sleeping.",
    "Der Hund läuft, und ein Vogel singt: »Straße, Äpfel, Öl!«",
    "고양이가 의자 위에서 자고 있습니다. 몇 시입니까?",
    "猫が椅子の上で寝ています。今日は、とても良い天気ですね！",  # noqa: RUF001
    "日本語 and 한국어 und Deutsch",
    "",
    " ",
    "\t \n\r",
    "  two  spaces   and three ",
    "tab\tnew\nline\r\nreturn",
    "no\u00a0break\u2009thin\u3000wide\u200bzero\u2028line",
    "😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 1️⃣",
    "Donaudampfschifffahrt" * 15,
    "x" * 300,
    "猫" * 300,
    "0 12 345,678.90 ½ ² Ⅷ ٣ ３",  # noqa: RUF001
    ">>deu<< The cat is sleeping.",
    ">>xyz<<The cat is sleeping.",
    "The cat >>deu<< is sleeping.",
    ">>",
    ">> not << a code",
    "MiXeD cAsE İstanbul ẞ ß ſ",  # noqa: RUF001
    "bell\x07 escape\x1b[31m del\x7f next\x85",
    "ﬁne ﬂow ﬀ ǆ Å ä a\u0308 e\u0301\u0323",
    "“Quotes” ‘single’ – dash — em … … it's don't ,x .y ( z )",  # noqa: RUF001
    "\u202eright to left\u202c שלום \ufeffmark \ufffd \U0010ffff",
    "▁ literal ▁piece▁",
    "Ġ literal Ċ bytes Ã¤",
    "Die Katze schläft . Der Hund , ein Kind ! a ? e ' f n't g 's",
)
SPELLED = ("</s>", "a </s> b", "<s><pad><unk></s>", "eng_Latn deu_Latn en_XX de_DE __de__ __en__", "<start>")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder with transformers' tokenizer and ours, loaded from a bundle's files."""

    kind: str
    folder: Path
    reference: Any
    tokenizer: Tokenizer
    languages: Languages


@pytest.fixture(scope="session", params=CHECKPOINTS)
def checkpoint(
    request: pytest.FixtureRequest, make: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    """Every kind of checkpoint."""
    folder = make(request.param)
    reference = load_reference(folder)
    if request.param == "m2m100":
        reference.tgt_lang = "de"  # it refuses target texts without one
    imported = read(folder, size_of(reference), *DIRECTIONS.get(request.param, ()))
    bundle = tmp_path_factory.mktemp("bundle")
    description = imported.tokenizer.save(bundle)
    assert DESCRIPTION.validate_json(description.model_dump_json()) == description
    assert sorted(description.files) == sorted(path.name for path in bundle.iterdir())
    return Checkpoint(request.param, folder, reference, load_tokenizer(description, bundle), imported.languages)


def test_ids_are_those_of_transformers(checkpoint: Checkpoint) -> None:
    ours, reference = checkpoint.tokenizer, checkpoint.reference
    for text in TEXTS:
        assert ours.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_target(text) == reference(text_target=text, add_special_tokens=False)["input_ids"]


def test_pieces_are_source_tokens_and_unknown_ones_as_in_the_text(checkpoint: Checkpoint) -> None:
    ours = checkpoint.tokenizer
    for text in (*TEXTS, *SPELLED):
        ids, decomposed = ours.encode(text), unicodedata.normalize("NFKD", text)
        for token, spelled, piece in zip(ids, ours.source_tokens(ids), ours.pieces(text), strict=True):
            if token == ours.source_unknown:
                assert piece
                assert set(unicodedata.normalize("NFKD", piece)) <= {"▁", *text, *decomposed, *decomposed.lower()}
            else:
                assert piece == spelled


def language_ids(languages: Languages) -> set[int]:
    """Ids of language tokens, which are not in translated texts."""
    targets = languages.targets.values()
    tokens = {token for one in targets for token in (*one.source_prefix, one.start, one.forced_first)}
    return {token for token in tokens if token is not None}


def expected_text(reference: Any, ids: list[int], languages: Languages) -> str:
    """Decode with transformers, without language tokens, since it would spell some out."""
    silent = language_ids(languages)
    return str(reference.decode([token for token in ids if token not in silent], skip_special_tokens=True))


def test_texts_of_ids_are_those_of_transformers(checkpoint: Checkpoint) -> None:
    random = np.random.default_rng(3)
    ours = checkpoint.tokenizer
    spelled = [token for token in range(ours.vocab_size) if ours.tokens([token]) != [""]]
    drawn = [random.choice(spelled, length).tolist() for length in range(1, 60)]
    for ids in (*drawn, *map(ours.encode_target, TEXTS)):
        assert ours.decode(ids) == expected_text(checkpoint.reference, ids, checkpoint.languages)


def test_spaces_are_cleaned_up_if_the_checkpoint_says_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for path in checkpoint.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    change(tmp_path, clean_up_tokenization_spaces=True)
    reference = load_reference(tmp_path)
    ours = read(tmp_path, size_of(reference), *DIRECTIONS.get(checkpoint.kind, ())).tokenizer
    changed = 0
    for ids in (ours.encode_target(text) for text in TEXTS):
        assert ours.decode(ids) == expected_text(reference, ids, checkpoint.languages)
        changed += ours.decode(ids) != checkpoint.tokenizer.decode(ids)
    assert (changed == 0) == (checkpoint.kind in {"bart", "nllb"})


def test_languages_and_unused_ids_decode_to_nothing(checkpoint: Checkpoint) -> None:
    ours = checkpoint.tokenizer
    text = ours.encode_target("a cat")
    silent = [*language_ids(checkpoint.languages), *range(ours.vocab_size - UNUSED, ours.vocab_size)]
    for token in silent:
        assert ours.decode([token, *text, token]) == ours.decode(text)
    assert ours.tokens(silent[-UNUSED:]) == [""] * UNUSED
    assert ours.source_tokens(silent[-UNUSED:]) == [""] * UNUSED
    assert all(ours.tokens([token]) != [""] for token in silent[:-UNUSED])
    for outside in (-1, ours.vocab_size):
        for call in (ours.decode, ours.tokens, ours.source_tokens):
            with pytest.raises(IndexError, match=f"token {outside} lies beyond the vocabulary of {ours.vocab_size}"):
                call([outside])


def test_text_that_spells_a_special_token_is_only_text(checkpoint: Checkpoint) -> None:
    unknown = checkpoint.reference.unk_token_id
    special = {*checkpoint.reference.all_special_ids, *language_ids(checkpoint.languages)} - {unknown}
    for text in SPELLED:
        for ids in (checkpoint.tokenizer.encode(text), checkpoint.tokenizer.encode_target(text)):
            assert ids
            assert not special & set(ids)


def test_tokens_are_the_pieces_of_transformers(checkpoint: Checkpoint) -> None:
    ids = checkpoint.tokenizer.encode(TEXTS[0])
    if checkpoint.kind != "marian-separate":  # which takes the numbers of a source for those of a target
        assert checkpoint.tokenizer.source_tokens(ids) == checkpoint.reference.convert_ids_to_tokens(ids)
    ids = checkpoint.tokenizer.encode_target(TEXTS[1])
    assert checkpoint.tokenizer.tokens(ids) == checkpoint.reference.convert_ids_to_tokens(ids)
    assert checkpoint.tokenizer.tokens([checkpoint.reference.eos_token_id]) == ["</s>"]


def test_threads_share_a_tokenizer(checkpoint: Checkpoint) -> None:
    ours, texts = checkpoint.tokenizer, TEXTS * 5
    alone = [ours.encode_target(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ours.encode_target, texts)) == alone
        assert list(pool.map(ours.decode, alone)) == [ours.decode(ids) for ids in alone]


def test_special_tokens_of_sources_are_those_of_transformers(checkpoint: Checkpoint) -> None:
    languages, ours = checkpoint.languages, checkpoint.tokenizer
    codes = {code.replace("_", "-"): code for code in (*NLLB_CODES, *MBART50_CODES)}
    for source, target in islice(languages.all_pairs, 0, None, 37):
        direction = languages.direction(source, target)
        reference = checkpoint.reference
        if checkpoint.kind in {"m2m100", "nllb", "mbart", "mbart50"}:
            reference.src_lang = codes.get(source, source)
        marked = f">>{target.replace('-', '_')}<< " if checkpoint.kind == "marian-codes" else ""
        for text in ("The cat is sleeping.", "고양이가 자고 있습니다.", ""):
            ids = [*direction.source_prefix, *ours.encode(direction.task_prefix + text), *direction.source_suffix]
            assert ids == reference(marked + direction.task_prefix + text)["input_ids"]


def test_targets_begin_as_with_generate(checkpoint: Checkpoint) -> None:
    languages, reference = checkpoint.languages, checkpoint.reference
    target = languages.direction(*next(languages.all_pairs)).target
    direction = languages.direction(next(iter(languages.sources)), target)
    if checkpoint.kind == "m2m100":
        assert (direction.start, direction.forced_first) == (None, reference.get_lang_id(target))
    elif checkpoint.kind in {"nllb", "mbart50"}:
        token = reference.convert_tokens_to_ids(target.replace("-", "_"))
        assert (direction.start, direction.forced_first) == (None, token)
    elif checkpoint.kind == "mbart":
        token = reference.convert_tokens_to_ids(target.replace("-", "_"))
        assert (direction.start, direction.forced_first) == (token, None)
    else:
        assert (direction.start, direction.forced_first) == (None, None)


def test_a_stable_text_is_a_prefix_of_every_continuation(checkpoint: Checkpoint) -> None:
    tokenizer = checkpoint.tokenizer
    generator = np.random.default_rng(2)
    cases = [tokenizer.encode_target(text) for text in (*TEXTS, *SPELLED)]
    cases += [generator.integers(0, tokenizer.vocab_size, size=24).tolist() for _ in range(300)]
    held = total = 0
    for ids in cases:
        texts = [tokenizer.decode(ids[:end]) for end in range(len(ids) + 1)]
        sure = ""
        for end, text in enumerate(texts):
            before, sure = sure, tokenizer.decode_stable(ids[:end])
            assert text.startswith(sure)
            assert sure.startswith(before)
            assert texts[-1].startswith(sure)
            held, total = held + len(text) - len(sure), total + len(text)
    assert held < total / 8
