"""Languages of checkpoints, and problems of tokenizer files."""

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_codes import M2M100_LANGUAGES
from tests.support.checkpoints.tokenizer_checkpoints import (
    ALL,
    CHECKPOINTS,
    change,
    lines,
    load_reference,
    pieces,
    read,
    size_of,
    write,
)

Make = Callable[[str], Path]
TEXTS = ("The cat is sleeping .", "  Der Hund läuft, und 猫 singt: »Straße«", "고양이가\u00a0자고 있습니다. ﬁne 👍🏽")


def refusal(folder: Path, *languages: str | None) -> str:
    """Problems of a checkpoint, one a line."""
    with pytest.raises(CheckpointError) as caught:
        read(folder, 1000, *languages)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(("named", "codes"), FAIRSEQ_LANGUAGE_CODES.items())
def test_m2m100_has_the_languages_of_transformers(named: str, codes: list[str]) -> None:
    assert M2M100_LANGUAGES[named].split() == codes


def test_former_nllb_puts_the_language_after_the_text(make: Make) -> None:
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
        ("bart", None, None, ("und", "und")),
        ("generic", None, "ko", ("und", "ko")),
        ("t5", None, None, None),
        ("t5", None, "fr", ("en", "fr")),
    ],
)
def test_requested_languages_are_the_default(
    make: Make, kind: str, source: str | None, target: str | None, default: tuple[str, str] | None
) -> None:
    languages = read(make(kind), 1000, source, target).languages
    assert (languages.default and (languages.default.source, languages.default.target)) == default


def test_languages_that_the_checkpoint_names_are_the_default(make: Make) -> None:
    folder = make("mbart50")
    change(folder, src_lang="ko_KR", tgt_lang="ja_XX")
    for asked, target in ((None, "ja-XX"), ("de_DE", "de-DE")):
        default = read(folder, 1000, target=asked).languages.default
        assert default is not None
        assert (default.source, default.target) == ("ko-KR", target)


def test_tasks_are_pairs_with_a_prefix(make: Make) -> None:
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
        ("marian-unnamed", None, None, ["source language: give --source-language", "language: give --target-language"]),
        ("bart", "English!", "de", ["--source-language 'English!' is no language tag such as 'en' or 'eng-Latn'"]),
        ("marian-codes", None, "deu", ["the checkpoint does not name its source language: give --source-language"]),
        ("marian-codes", "en", "fra", ["--target-language: the model has no target language 'fra'; it has deu, kor, "]),
        ("m2m100", "xx", "yy", ["no source language 'xx'; it has af, am, ar", "no target language 'yy'"]),
        ("m2m100", "en", None, ["--target-language is missing: name both languages or none"]),
        ("nllb", "en", "deu_Latn", ["no source language 'en'; it has deu-Latn, eng-Latn, jpn-Jpan, kor-Hang"]),
        ("mbart", "en_XX", "gl_ES", ["no target language 'gl_ES'; it has ar-AR, "]),
        ("t5", "en", "ko", ["no target language 'ko'; it has de, fr"]),
        ("t5", "de", "fr", ["no source language 'de'; it has en"]),
    ],
)
def test_languages_that_the_model_lacks_are_named(
    make: Make, kind: str, source: str | None, target: str | None, problems: list[str]
) -> None:
    folder = make(kind.removesuffix("-unnamed"))
    if kind == "marian-unnamed":
        change(folder, source_lang=None, target_lang=None)
    for found, expected in zip(refusal(folder, source, target).splitlines(), problems, strict=True):
        assert expected in found


def test_languages_beyond_the_model_are_left_out(make: Make) -> None:
    folder = make("m2m100")
    vocabulary = len(json.loads((folder / "vocab.json").read_text("utf-8")))
    imported = read(folder, vocabulary + 3)
    assert list(imported.languages.sources) == ["af", "am", "ar"]
    assert imported.tokenizer.tokens([vocabulary + 2]) == ["__ar__"]
    with pytest.raises(CheckpointError, match="no language tokens within the model's vocabulary"):
        read(folder, vocabulary)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_model_with_fewer_tokens_than_the_tokenizer_is_refused(make: Make, kind: str) -> None:
    with pytest.raises(CheckpointError, match=r"has ids up to \d{3}, but the model's ids end at 99"):
        read(make(kind), 100, "en", "de")


@pytest.mark.parametrize(
    ("kind", "name", "content", "problem"),
    [
        ("marian", "source.spm", None, "source.spm is missing"),
        ("marian", "vocab.json", None, "vocab.json is missing"),
        ("marian-separate", "target_vocab.json", None, "target_vocab.json is missing: MarianTokenizer needs it"),
        ("m2m100", "sentencepiece.bpe.model", None, "sentencepiece.bpe.model is missing"),
        ("t5", "tokenizer.json", None, "T5Tokenizer is made of tokenizer.json, or spiece.model: neither is there"),
        ("bart", "tokenizer.json", None, "is made of tokenizer.json, or vocab.json and merges.txt: neither is there"),
        ("marian", "vocab.json", b"[1, 2]", "vocab.json is not a JSON object from piece to id"),
        ("marian", "vocab.json", b'{"a": "b"}', "vocab.json is not a JSON object from piece to id: .* at 'a'"),
        ("marian", "vocab.json", b'{"</s>": 0}', "the source vocabulary has no '<unk>', the token of unknown pieces"),
        ("marian", "vocab.json", b'{"<unk>": 0}', "the tokenizer has no '</s>', the token that ends a sentence"),
        ("marian", "target.spm", b"nothing", "target.spm is not a SentencePiece model"),
        ("m2m100", "tokenizer_config.json", b"{", "tokenizer_config.json is not JSON"),
        ("m2m100", "tokenizer_config.json", b"[]", "tokenizer_config.json is not a JSON object"),
        ("t5", "tokenizer.json", b"{}", "cannot load the tokenizer"),
    ],
)
def test_missing_and_other_files(make: Make, kind: str, name: str, content: bytes | None, problem: str) -> None:
    folder = make(kind)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert re.search(problem, refusal(folder, "en", "de"))


def test_all_missing_files_are_named_at_once(make: Make) -> None:
    folder = make("marian")
    for name in ("source.spm", "vocab.json"):
        (folder / name).unlink()
    assert len(refusal(folder, "en", "de").splitlines()) == 2


def use_readable_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """SentencePiece's own description of its model files may ask for a newer protobuf; transformers brings another."""
    try:
        importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception:
        readable = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
        converter = importlib.import_module("transformers.convert_slow_tokenizer")  # a function has its name as well
        monkeypatch.setattr(converter, "import_protobuf", lambda *_: readable)


def test_sentencepiece_model_alone_is_converted_by_transformers(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    assert "cannot load the tokenizer: it cannot read SentencePiece models here" in refusal(folder)


def test_settings_that_change_the_segmentation_are_refused(make: Make) -> None:
    folder = make("m2m100")
    added = {"1000": {"content": "Schifffahrt", "special": False}, "1001": {"content": "<sep>", "special": True}}
    change(folder, sp_model_kwargs={"enable_sampling": True}, added_tokens_decoder=added)
    assert [problem.partition(": ")[2] for problem in refusal(folder, "en", "de").splitlines()] == [
        "the added token 'Schifffahrt' is not special; texts that spell it cannot be cut there",
        "sp_model_kwargs must be empty, got {'enable_sampling': True}",
    ]
    change(folder, sp_model_kwargs={}, added_tokens_decoder={}, language_codes="m2m200")
    assert "language_codes is 'm2m200'; known are m2m100, wmt21" in refusal(folder)


def test_code_of_a_checkpoint_is_refused_and_not_run(make: Make, tmp_path: Path) -> None:
    folder = make("t5")
    ran = tmp_path / "ran"
    (folder / "tokenization_own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: ...\n", encoding="utf-8")
    expected = read(folder, 1000, "en", "de").tokenizer.encode(TEXTS[0])
    auto_map = {"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}
    for class_name in ("OwnTokenizer", "T5Tokenizer"):
        change(folder, tokenizer_class=class_name, auto_map=auto_map)
        assert "auto_map names code of its own, which is never run" in refusal(folder, "en", "de")
        assert not ran.exists()
    stated = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    del stated["auto_map"]
    write(folder / "tokenizer_config.json", stated)
    assert read(folder, 1000, "en", "de").tokenizer.encode(TEXTS[0]) == expected


def test_unknown_tokenizer_class_is_named(make: Make) -> None:
    folder = make("bart")
    expected = read(folder, 1000).tokenizer.encode(TEXTS[0])
    for name in ("LokomotivTokenizer", "LokomotivTokenizerFast"):
        change(folder, tokenizer_class=name)
        assert re.search(rf"has no tokenizer class '{name}': .* 'PreTrainedTokenizerFast'", refusal(folder))
    change(folder, tokenizer_class="PreTrainedTokenizerFast")
    assert read(folder, 1000).tokenizer.encode(TEXTS[0]) == expected


def test_byte_pairs_without_merges_are_refused(make: Make) -> None:
    folder = make("bart")
    fields = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    model = fields["model"]
    model["vocab"] |= {f"Ġword{number}": len(model["vocab"]) + number for number in range(200)}
    write(folder / "tokenizer.json", fields | {"model": model | {"merges": []}})
    assert "tokens and no merges: texts would become single characters" in refusal(folder)
    vocabulary = model["vocab"]
    (folder / "tokenizer.json").unlink()
    write(folder / "vocab.json", vocabulary)
    assert "made of tokenizer.json, or vocab.json and merges.txt: merges.txt" in refusal(folder)


def test_codes_that_differ_by_case_stay_apart(make: Make) -> None:
    folder = make("marian-codes")
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    size = len(vocabulary)
    write(folder / "vocab.json", vocabulary | {">>pt_br<<": size, ">>pt_BR<<": size + 1, ">>PT_BR<<": size + 2})
    imported = read(folder, size + 9, "en")
    prefixes = {tag: target.source_prefix for tag, target in imported.languages.targets.items()}
    assert prefixes["pt-br"] == (size,)
    assert prefixes["pt-BR-x-2"] == (size + 1,)
    assert prefixes["PT-BR-x-3"] == (size + 2,)
    assert "'pt_BR' is the language pt-BR-x-2" in imported.notes[0]


def test_only_code_is_put_before_no_text_as_in_generate(make: Make) -> None:
    folder = make("marian-codes")
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    kept = [token for token in vocabulary if not token.startswith(">>") or token == ">>deu<<"]
    write(folder / "vocab.json", {token: number for number, token in enumerate(kept)})
    reference = load_reference(folder)
    imported = read(folder, size_of(reference), "en")
    direction = imported.languages.direction()
    assert direction.target == "deu"
    assert ">>deu<<" in imported.notes[0]
    for text in ("The cat is sleeping .", ">>deu<< The cat is sleeping ."):
        ids = [*direction.source_prefix, *imported.tokenizer.encode(text), *direction.source_suffix]
        assert ids == reference(text)["input_ids"]


@pytest.mark.parametrize(
    ("kind", "code", "source", "target"),
    [
        ("m2m100", "__ko__", "en", "ko"),
        ("nllb", "deu_Latn", "eng-Latn", "deu-Latn"),
        ("mbart50", "gl_ES", "en-XX", "gl-ES"),
    ],
)
def test_forced_first_tokens_are_the_default_target(make: Make, kind: str, code: str, source: str, target: str) -> None:
    folder = make(kind)
    reference = load_reference(folder)
    token = reference.get_lang_id(code.strip("_")) if kind == "m2m100" else reference.convert_tokens_to_ids(code)
    languages = read(folder, size_of(reference), forced_first=token).languages
    assert languages.default is not None
    assert (languages.default.source, languages.default.target) == (source, target)
    assert reference.src_lang.strip("_").replace("_", "-") == source
    assert read(folder, size_of(reference), forced_first=3).languages.default is None


def test_family_without_a_class_is_recognized_by_its_tokens(make: Make) -> None:
    for kind in ("nllb", "mbart", "mbart50"):
        folder = make(kind)
        expected = read(folder, 1000).languages
        change(folder, tokenizer_class="PreTrainedTokenizerFast")
        assert read(folder, 1000).languages == expected
