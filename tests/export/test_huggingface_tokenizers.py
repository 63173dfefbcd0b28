"""Imported tokenizers give transformers' own tokens and texts, in the frame that each language needs."""

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART50_CODES

from jumok_export.huggingface.errors import CheckpointError
from jumok_export.huggingface.tokenizers import M2M100_LANGUAGES, ImportedTokenizer, read_tokenizer
from jumok_serve.languages import Languages
from jumok_serve.tokenizer import Tokenizer, load_tokenizer

from .tokenizer_checkpoints import ALL, CHECKPOINTS, NLLB_CODES, change, lines, pieces, write

UNUSED = 7
"""Ids that the models have beyond their tokenizers'."""

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
SPELLED = (
    "</s>",
    "a </s> b",
    "<s><pad><unk><mask></s>",
    "<extra_id_3> and <extra_id_0>",
    "eng_Latn deu_Latn en_XX de_DE __de__ __en__",
    "<start>",
)
"""Texts that spell special tokens."""


ASKED = {"marian-codes": ("en", "deu"), "bart": ("en", "de"), "generic": ("en", "de")}
"""Languages to name for the kinds of checkpoints that do not say theirs."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, transformers' tokenizer of it, and ours, loaded from the files of a bundle."""

    kind: str
    folder: Path
    reference: Any
    tokenizer: Tokenizer
    languages: Languages


def load_reference(folder: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)


def size_of(reference: Any) -> int:
    """Number of ids that a model has for this tokenizer."""
    if type(reference).__name__ == "M2M100Tokenizer":
        return int(reference.encoder_size) + 100 + UNUSED
    return max(len(reference), len(getattr(reference, "target_encoder", ()))) + UNUSED


def read(
    folder: Path, size: int, source: str | None = None, target: str | None = None, **config: Any
) -> ImportedTokenizer:
    return read_tokenizer(
        folder,
        json.loads((folder / "config.json").read_text("utf-8")) | config,
        source_language=source,
        target_language=target,
        source_vocabulary=size,
        target_vocabulary=size,
    )


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the files of a kind of checkpoint in a fresh folder."""

    def fresh(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        save, config = CHECKPOINTS[kind]
        save(folder)
        write(folder / "config.json", config)
        return folder

    return fresh


@pytest.fixture(scope="session", params=CHECKPOINTS)
def checkpoint(
    request: pytest.FixtureRequest, make: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    """Every kind of checkpoint."""
    folder = make(request.param)
    reference = load_reference(folder)
    if request.param == "m2m100":
        reference.tgt_lang = "de"  # it refuses target texts without one
    imported = read(folder, size_of(reference), *ASKED.get(request.param, ()))
    bundle = tmp_path_factory.mktemp("bundle")
    description = imported.tokenizer.save(bundle)
    assert sorted(description.files) == sorted(path.name for path in bundle.iterdir())
    return Checkpoint(request.param, folder, reference, load_tokenizer(description, bundle), imported.languages)


@pytest.mark.parametrize("text", TEXTS)
def test_source_ids_are_those_of_transformers(checkpoint: Checkpoint, text: str) -> None:
    assert checkpoint.tokenizer.encode(text) == checkpoint.reference(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_target_ids_are_those_of_transformers(checkpoint: Checkpoint, text: str) -> None:
    expected = checkpoint.reference(text_target=text, add_special_tokens=False)["input_ids"]
    assert checkpoint.tokenizer.encode_target(text) == expected


def language_ids(languages: Languages) -> set[int]:
    """Ids of the languages' tokens, of which translations show nothing."""
    targets = languages.targets.values()
    framing = {token for one in targets for token in (*one.source_prefix, one.start, one.forced_first)}
    return {token for token in framing if token is not None}


def expected_text(reference: Any, ids: list[int], languages: Languages) -> str:
    """What transformers makes of ids without the languages' tokens, some of which it would spell out."""
    silent = language_ids(languages)
    return str(reference.decode([token for token in ids if token not in silent], skip_special_tokens=True))


def test_texts_of_ids_are_those_of_transformers(checkpoint: Checkpoint) -> None:
    random = np.random.default_rng(3)
    ours = checkpoint.tokenizer
    spelled = [token for token in range(ours.vocab_size) if ours.tokens([token]) != [""]]
    drawn = [random.choice(spelled, length).tolist() for length in range(1, 60)]
    for ids in (*drawn, *map(ours.encode_target, TEXTS)):
        assert ours.decode(ids) == expected_text(checkpoint.reference, ids, checkpoint.languages)


def test_spaces_are_cleaned_up_where_the_checkpoint_says_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for path in checkpoint.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    change(tmp_path, clean_up_tokenization_spaces=True)
    reference = load_reference(tmp_path)
    ours = read(tmp_path, size_of(reference), *ASKED.get(checkpoint.kind, ())).tokenizer
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


@pytest.mark.parametrize("text", SPELLED)
def test_text_that_spells_a_special_token_is_only_text(checkpoint: Checkpoint, text: str) -> None:
    unknown = checkpoint.reference.unk_token_id
    special = {*checkpoint.reference.all_special_ids, *language_ids(checkpoint.languages)} - {unknown}
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


def test_sources_are_framed_as_by_transformers(checkpoint: Checkpoint) -> None:
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


@pytest.mark.parametrize(("named", "codes"), FAIRSEQ_LANGUAGE_CODES.items())
def test_m2m100_has_the_languages_of_transformers(named: str, codes: list[str]) -> None:
    assert M2M100_LANGUAGES[named].split() == codes


def test_targets_begin_as_generate_is_told_to(checkpoint: Checkpoint) -> None:
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


def test_nllb_may_put_the_language_behind_the_text(make: Callable[[str], Path]) -> None:
    folder = make("nllb")
    change(folder, legacy_behaviour=True)
    reference = load_reference(folder, src_lang="deu_Latn")
    languages = read(folder, len(reference)).languages
    source = languages.sources["deu-Latn"]
    ids = reference("Der Hund")["input_ids"]
    assert (*source.prefix, *ids[: -len(source.suffix)], *source.suffix) == tuple(ids)
    assert source.suffix == (reference.eos_token_id, reference.convert_tokens_to_ids("deu_Latn"))
    assert languages.targets["deu-Latn"].forced_first == reference.convert_tokens_to_ids("deu_Latn")


@pytest.mark.parametrize(
    ("kind", "source", "target", "default"),
    [
        ("marian", None, None, ("en", "de")),
        ("marian", "en_GB", "de-AT", ("en-GB", "de-AT")),
        ("marian-codes", "en", None, None),
        ("marian-codes", "en", "CMN-hans", ("en", "cmn-Hans")),
        ("m2m100", None, None, None),
        ("m2m100", "EN", "ko", ("en", "ko")),
        ("nllb", "eng_Latn", "deu-latn", ("eng-Latn", "deu-Latn")),
        ("mbart", "en_XX", "de_DE", ("en-XX", "de-DE")),
        ("mbart50", "ko-kr", "gl_ES", ("ko-KR", "gl-ES")),
        ("bart", "en", "ko", ("en", "ko")),
        ("t5", None, None, None),
        ("t5", None, "fr", ("en", "fr")),
    ],
)
def test_languages_that_are_asked_for_are_the_default(
    make: Callable[[str], Path], kind: str, source: str | None, target: str | None, default: tuple[str, str] | None
) -> None:
    languages = read(make(kind), 1000, source, target).languages
    assert (languages.default and (languages.default.source, languages.default.target)) == default


def test_languages_that_the_checkpoint_names_are_the_default(make: Callable[[str], Path]) -> None:
    folder = make("mbart50")
    change(folder, src_lang="ko_KR", tgt_lang="ja_XX")
    default = read(folder, 1000).languages.default
    assert default is not None
    assert (default.source, default.target) == ("ko-KR", "ja-XX")
    default = read(folder, 1000, target="de_DE").languages.default
    assert default is not None
    assert (default.source, default.target) == ("ko-KR", "de-DE")


def test_tasks_are_pairs_with_a_prefix(make: Callable[[str], Path]) -> None:
    languages = read(make("t5"), 1000, "en", "fr").languages
    assert [(pair.source, pair.target, pair.task_prefix) for pair in languages.pairs] == [
        ("en", "de", "translate English to German: "),
        ("en", "fr", "translate English to French: "),
    ]
    assert languages.direction().task_prefix == "translate English to French: "
    alone = read(make("t5"), 1000, "ko", "en", task_specific_params=None).languages
    assert alone.pairs == ()
    assert alone.direction("ko", "en").task_prefix == ""


@pytest.mark.parametrize(
    ("kind", "source", "target", "problems"),
    [
        ("bart", None, None, ["source language: give --source-lang", "target language: give --target-lang"]),
        ("bart", "English!", "de", ["--source-lang 'English!' is no language tag such as 'en' or 'eng-Latn'"]),
        ("marian-codes", None, "deu", ["the checkpoint does not name its source language: give --source-lang"]),
        ("marian-codes", "en", "fra", ["--target-lang: the model has no target language 'fra'; it has deu, kor, "]),
        ("m2m100", "xx", "yy", ["no source language 'xx'; it has af, am, ar", "no target language 'yy'"]),
        ("m2m100", "en", None, ["--target-lang is missing: name both languages or none"]),
        ("nllb", "en", "deu_Latn", ["no source language 'en'; it has deu-Latn, eng-Latn, jpn-Jpan, kor-Hang"]),
        ("mbart", "en_XX", "gl_ES", ["no target language 'gl_ES'; it has ar-AR, "]),
        ("t5", "en", "ko", ["no target language 'ko'; it has de, fr"]),
        ("t5", "de", "fr", ["no source language 'de'; it has en"]),
    ],
)
def test_languages_that_the_model_lacks_are_named(
    make: Callable[[str], Path], kind: str, source: str | None, target: str | None, problems: list[str]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(make(kind), 1000, source, target)
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert expected in found


def test_languages_beyond_the_model_are_left_out(make: Callable[[str], Path]) -> None:
    folder = make("m2m100")
    vocabulary = len(json.loads((folder / "vocab.json").read_text("utf-8")))
    imported = read(folder, vocabulary + 3)
    assert list(imported.languages.sources) == ["af", "am", "ar"]
    assert imported.tokenizer.tokens([vocabulary + 2]) == ["__ar__"]
    with pytest.raises(CheckpointError, match="no language tokens within the model's vocabulary"):
        read(folder, vocabulary)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_model_with_fewer_tokens_than_the_tokenizer_is_refused(make: Callable[[str], Path], kind: str) -> None:
    with pytest.raises(CheckpointError, match=r"has ids up to \d{3}, but the model has only 100"):
        read(make(kind), 100, "en", "de")


@pytest.mark.parametrize(
    ("kind", "missing", "problems"),
    [
        ("marian", ["source.spm", "vocab.json"], ["source.spm is missing", "vocab.json is missing"]),
        ("marian-separate", ["target_vocab.json"], ["target_vocab.json is missing: MarianTokenizer is made of it"]),
        ("m2m100", ["sentencepiece.bpe.model"], ["sentencepiece.bpe.model is missing"]),
        ("t5", ["tokenizer.json"], ["T5Tokenizer is made of tokenizer.json, or spiece.model: neither is there"]),
        ("bart", ["tokenizer.json"], ["is made of tokenizer.json, or vocab.json and merges.txt: neither is there"]),
    ],
)
def test_missing_files_are_named(
    make: Callable[[str], Path], kind: str, missing: list[str], problems: list[str]
) -> None:
    folder = make(kind)
    for name in missing:
        (folder / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        read(folder, 1000, "en", "de")
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert expected in found


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("marian", "vocab.json", b"[1, 2]", "vocab.json is not a JSON object from piece to id"),
        ("marian", "vocab.json", b'{"a": "b"}', "vocab.json is not a JSON object from piece to id: .* at 'a'"),
        ("marian", "vocab.json", b'{"</s>": 0}', "the vocabulary has no '<unk>', the token of unknown pieces"),
        ("marian", "vocab.json", b'{"<unk>": 0}', "vocab.json has no '</s>', the token that ends a sentence"),
        ("marian", "target.spm", b"nothing", "target.spm is not a SentencePiece model"),
        ("m2m100", "tokenizer_config.json", b"{", "tokenizer_config.json is not JSON"),
        ("m2m100", "tokenizer_config.json", b"[]", "tokenizer_config.json is not a JSON object"),
        ("t5", "tokenizer.json", b"{}", "cannot load the tokenizer"),
    ],
)
def test_unusable_files_are_named(
    make: Callable[[str], Path], kind: str, name: str, content: bytes, message: str
) -> None:
    folder = make(kind)
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read(folder, 1000, "en", "de")


def use_readable_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """SentencePiece's own description of its model files may ask for a newer protobuf; transformers brings another."""
    try:
        importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception:
        readable = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
        monkeypatch.setattr("transformers.convert_slow_tokenizer.import_protobuf", lambda *_: readable)


def test_sentencepiece_model_alone_is_converted_by_transformers(
    make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("t5")
    (folder / "tokenizer.json").unlink()
    (folder / "spiece.model").write_bytes(pieces(lines(*ALL), 320, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    with monkeypatch.context() as patch:
        use_readable_protobuf(patch)
        reference = load_reference(folder)
        imported = read(folder, size_of(reference))
    for text in TEXTS:
        assert imported.tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    monkeypatch.delattr("sentencepiece.sentencepiece_model_pb2", raising=False)
    with pytest.raises(CheckpointError, match="cannot load the tokenizer: it cannot read SentencePiece models here"):
        read(folder, 1000)


def test_settings_that_make_other_pieces_are_refused(make: Callable[[str], Path]) -> None:
    folder = make("m2m100")
    added = {"1000": {"content": "Schifffahrt", "special": False}, "1001": {"content": "<sep>", "special": True}}
    change(folder, sp_model_kwargs={"enable_sampling": True}, added_tokens_decoder=added)
    with pytest.raises(CheckpointError) as caught:
        read(folder, 1000, "en", "de")
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "the added token 'Schifffahrt' is not special; texts that spell it cannot be cut there",
        "sp_model_kwargs must be empty, got {'enable_sampling': True}",
    ]
    change(folder, sp_model_kwargs={}, added_tokens_decoder={}, language_codes="m2m200")
    with pytest.raises(CheckpointError, match="language_codes is 'm2m200'; known are m2m100, wmt21"):
        read(folder, 1000)


def test_code_of_a_checkpoint_is_never_run(make: Callable[[str], Path], tmp_path: Path) -> None:
    folder = make("t5")
    ran = tmp_path / "ran"
    (folder / "tokenization_own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: ...\n", encoding="utf-8")
    expected = read(folder, 1000, "en", "de").tokenizer.encode(TEXTS[0])
    auto_map = {"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}
    for class_name in ("OwnTokenizer", "T5Tokenizer"):
        change(folder, tokenizer_class=class_name, auto_map=auto_map)
        assert read(folder, 1000, "en", "de").tokenizer.encode(TEXTS[0]) == expected
        assert not ran.exists()


def test_family_without_a_class_is_told_apart_by_its_tokens(make: Callable[[str], Path]) -> None:
    for kind in ("nllb", "mbart", "mbart50"):
        folder = make(kind)
        expected = read(folder, 1000).languages
        change(folder, tokenizer_class="PreTrainedTokenizerFast")
        assert read(folder, 1000).languages == expected


def test_without_transformers_the_file_is_taken_as_it_is(
    make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What transformers saved runs as in transformers; what it would have to convert is refused."""
    folders = {kind: make(kind) for kind in CHECKPOINTS}
    change(folders["t5"], clean_up_tokenization_spaces=True)
    change(folders["bart"], clean_up_tokenization_spaces=True)
    expected = {kind: read(folder, 1000, *ASKED.get(kind, ())) for kind, folder in folders.items()}
    monkeypatch.setitem(sys.modules, "transformers", None)
    for kind, folder in folders.items():
        imported = read(folder, 1000, *ASKED.get(kind, ()))
        assert imported.languages == expected[kind].languages
        for text in TEXTS:
            ids = imported.tokenizer.encode_target(text)
            assert ids == expected[kind].tokenizer.encode_target(text)
            assert imported.tokenizer.decode(ids) == expected[kind].tokenizer.decode(ids)
    (folders["mbart50"] / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="install transformers, which makes one of the files of MBart50Tokenizer"):
        read(folders["mbart50"], 1000)
