"""``jumok evaluate``: sacreBLEU's scores, and wrong files."""

import gzip
import json
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from jumok_serve.evaluation import parallel_text
from jumok_serve.evaluation.parallel_text import bleu_tokenizer
from jumok_serve.translator import Translator
from tests.support.command import run as run_process
from tests.support.command import run_here as run
from tests.support.models.variants import directed, edited

SOURCES = [
    "a man in a blue shirt is standing on a ladder .",
    "two young , white males are outside near many bushes .",
    "",
    "a little girl climbing into a wooden playhouse . " * 40,
] * 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.en"
    path.write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """Write greedy translations, the first fifty replaced, so that scores lie between 0 and 100."""
    with Translator(tiny_bundle, threads=1) as translator:
        texts = [answer.text for answer in translator.translate(SOURCES, beam_size=1, truncate=True)]
    path = tmp_path_factory.mktemp("reference") / "reference.de.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in ["ein Mann in einem blauen Hemd"] * 50 + texts[50:])
    return path


def test_the_scores_are_those_of_sacrebleu(tiny_bundle: Path, source: Path, reference: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.de"
    arguments = (tiny_bundle, "--source", source, "--reference", reference, "--beam-size", "1", "--threads", "1")
    done = run_process("evaluate", *arguments, "--output", output, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    scores = json.loads(done.stdout)
    translations = output.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    references = gzip.decompress(reference.read_bytes()).decode().removesuffix("\n").split("\n")
    bleu, chrf = BLEU(), CHRF()
    assert scores["bleu"] == pytest.approx(bleu.corpus_score(translations, [references]).score)
    assert scores["chrf"] == pytest.approx(chrf.corpus_score(translations, [references]).score)
    assert 0 < scores["chrf"] < 100
    assert scores["bleu_signature"] == str(bleu.get_signature())
    assert scores["chrf_signature"] == str(chrf.get_signature())
    assert scores["sentences"] == len(SOURCES)
    assert scores["truncated"] >= 40
    assert scores["duration_s"] > 0

    shown = run("evaluate", *arguments)
    assert shown.returncode == 0
    text = shown.stdout.decode()
    assert f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}" in text
    assert f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}" in text
    assert f"160 sentences ({scores['truncated']} cut)" in text


def test_options_change_what_is_scored(tiny_bundle: Path, source: Path, reference: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.de"
    done = run(
        "evaluate",
        tiny_bundle,
        *("--source", source, "--reference", reference, "--output", output, "--threads", "1", "--json"),
        *("--source-language", "EN", "--target-language", "de", "--max-length", "6", "--no-repeat-ngram-size", "1"),
        *("--sample", "--temperature", "1.2", "--top-k", "20", "--top-p", "0.9", "--seed", "3"),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    with Translator(tiny_bundle, threads=1) as translator:
        wanted = translator.translate(
            SOURCES,
            truncate=True,
            split_sentences=False,
            max_length=6,
            no_repeat_ngram_size=1,
            temperature=1.2,
            top_k=20,
            top_p=0.9,
            seed=3,
        )
    assert output.read_text(encoding="utf-8").splitlines() == [answer.text for answer in wanted]


def test_files_of_different_lengths_are_refused(tiny_bundle: Path, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("a\nb\n", encoding="utf-8")
    done = run("evaluate", tiny_bundle, "--source", source, "--reference", other)
    assert (done.returncode, done.stdout) == (1, b"")
    (error,) = done.stderr.decode().splitlines()
    assert error.startswith(f"Error: {source} has 160 lines and {other} has 2: ")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty", b"", "has no lines"),
        ("latin", b"a\nb\xe4\n", "line 2, byte 2: 0xe4 is not UTF-8"),
        ("cut.gz", gzip.compress(b"a\n" * 1000, mtime=0)[:-12], "cannot be read: "),
        ("text.gz", b"plain text", "cannot be read: "),
    ],
)
def test_files_that_are_no_text_are_refused(
    tiny_bundle: Path, tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    done = run("evaluate", tiny_bundle, "--source", path, "--reference", path)
    assert (done.returncode, done.stdout) == (1, b"")
    (error,) = done.stderr.decode().splitlines()
    assert error.startswith(f"Error: {path}")
    assert message in error


def test_bleu_has_the_tokenizer_of_the_target_language(
    tiny_bundle: Path, source: Path, reference: Path, tmp_path: Path
) -> None:
    arguments = ("--source", source, "--reference", reference, "--threads", "1", "--json")
    bundle = edited(tiny_bundle, tmp_path / "japanese", directed("en", "ja"))
    for options, tokenizer in (([], bleu_tokenizer("ja")), (["--bleu-tokenizer", "intl"], "intl")):
        done = run("evaluate", bundle, *arguments, *options)
        assert done.returncode == 0, done.stderr
        assert f"tok:{tokenizer}|" in json.loads(done.stdout)["bleu_signature"]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("zh", "zh"),
        ("cmn-Hans", "zh"),
        ("yue_Hant", "zh"),
        ("ja-XX", "char"),
        ("jpn-Jpan", "char"),
        ("KO", "char"),
        ("de", "13a"),
        ("jv", "13a"),
        ("lzh", "zh"),
        ("und", "13a"),
    ],
)
def test_languages_have_tokenizers(language: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the packages for Japanese and Korean."""
    monkeypatch.setattr(parallel_text, "find_spec", lambda _: None)
    assert bleu_tokenizer(language) == tokenizer
    assert tokenizer in parallel_text.NAMES
    perfect = ["猫が椅子の上で寝ています。", "고양이가 자고 있습니다.", "แมวกำลังนอนอยู่"]
    assert BLEU(tokenize=tokenizer).corpus_score(perfect, [perfect]).score == pytest.approx(100)


@pytest.mark.parametrize("language", ["th", "tha-Thai", "my", "bo_CN", "KM"])
def test_languages_without_spaces_have_no_tokenizer(language: str) -> None:
    assert bleu_tokenizer(language) is None


def test_without_a_tokenizer_chrf_counts_alone(
    tiny_bundle: Path, source: Path, reference: Path, tmp_path: Path
) -> None:
    bundle = edited(tiny_bundle, tmp_path / "thai", directed("en", "th"))
    arguments = ("--source", source, "--reference", reference, "--threads", "1", "--beam-size", "1")
    done = run("evaluate", bundle, *arguments)
    assert "BLEU none: sacreBLEU has no tokenizer for th; name one with --bleu-tokenizer" in done.stdout.decode()
    scores = json.loads(run("evaluate", bundle, *arguments, "--json").stdout)
    assert (scores["bleu"], scores["bleu_signature"]) == (None, None)
    assert f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}" in done.stdout.decode()
    chosen = json.loads(run("evaluate", bundle, *arguments, "--json", "--bleu-tokenizer", "char").stdout)
    assert "tok:char|" in chosen["bleu_signature"]


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ("ko-mecab", "needs mecab_ko, which is not installed; install it with: pip install 'sacrebleu[ko]'"),
        ("ja-mecab", "needs MeCab, which is not installed; install it with: pip install 'sacrebleu[ja]'"),
    ],
)
def test_tokenizer_without_its_package_is_refused(
    tiny_bundle: Path, source: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str, words: str
) -> None:
    monkeypatch.setattr(parallel_text, "find_spec", lambda _: None)
    arguments = ("--source", source, "--reference", source, "--bleu-tokenizer", tokenizer)
    done = run("evaluate", tiny_bundle, *arguments)
    assert done.returncode == 2
    assert words in done.stderr.decode()
