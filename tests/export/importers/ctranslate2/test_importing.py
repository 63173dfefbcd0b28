"""Imported CTranslate2 folders translate as CTranslate2 does."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from jumok.commands._main import run
from jumok_export.importers.ctranslate2.importing import import_folder
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import Vocabulary
from jumok_proto.results import Translation
from jumok_serve import EngineLimits, Translator
from jumok_serve.bundle.bundle import Bundle
from tests.parity.checkpoints import Checkpoint, make_checkpoint
from tests.parity.grid import cases
from tests.parity.marian_ct2 import DIFFERENT, Peer, compared, option_sets, plain_shapes
from tests.parity.run import quiet, translate
from tests.parity.texts import parallel_sentences
from tests.support.checkpoints.ctranslate2_folders import open_peer, random_spec, save, spec_of, tokens_of
from tests.support.checkpoints.tokenizer_checkpoints import change

FolderOf = Callable[[str | None], Path]
TEXTS = ["The cat sleeps.", "A bird sings in the tree.", "My sister drinks cold water.", "The dog reads a bird."]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Peer, Path]:
    """A Marian checkpoint, trained a little, and its folder by CTranslate2's converter."""
    shape = next(shape for shape in plain_shapes() if shape.name.startswith("marian-3-heads"))
    folder = tmp_path_factory.mktemp("marian")
    with quiet():
        checkpoint = make_checkpoint(replace(shape, steps=120), folder / "checkpoint")
        peer = Peer(checkpoint, folder / "ct2")
    for name in ("source.spm", "target.spm"):
        shutil.copy(checkpoint.folder / name, folder / "ct2")
    return checkpoint, peer, folder / "ct2"


def test_hypotheses_of_a_converted_marian_are_equal(marian: tuple[Checkpoint, Peer, Path], tmp_path: Path) -> None:
    checkpoint, peer, folder = marian
    command = ["import", str(folder), "--out", str(tmp_path / "bundle"), "--precision", "fp32"]
    assert run([*command, "--source-language", "eng", "--target-language", "deu"]) == 0
    sets = [
        replace(one, options=replace(one.options, min_length=one.options.min_length or 0))
        for one in option_sets(checkpoint)
        if one.name not in DIFFERENT
    ]
    asked = list(cases(checkpoint, sets, parallel_sentences(6, seed=5)))
    limits = EngineLimits(max_queue_requests=10**6, max_queue_tokens=10**9)
    with Translator(tmp_path / "bundle", precision="fp32", threads=1, limits=limits) as translator:
        translations = translate(translator, [case for _, case in asked])
    assert [f"{chosen.name}: {what}" for chosen, _, what in compared(asked, translations, peer) if what] == []
    assert len({translation.text for translation in translations}) > 6


@pytest.fixture(scope="module")
def folder_of(tiny_model: Transformer, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Make a folder of the tiny model, quantized or not."""
    home = tmp_path_factory.mktemp("ct2")

    def make(quantization: str | None) -> Path:
        folder = home / str(quantization)
        if not folder.exists():
            save(spec_of(tiny_model, tokens_of(vocabulary.model)), folder, vocabulary.model, quantization)
        return folder

    return make


def import_fp32(folder: Path, out: Path, *also: str) -> Bundle:
    return import_folder(folder, out, precisions=("fp32", *also), source_language="en", target_language="de")


@pytest.fixture(scope="module")
def translator(folder_of: FolderOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    bundle = tmp_path_factory.mktemp("translator") / "bundle"
    import_fp32(folder_of(None), bundle)
    with Translator(bundle, precision="fp32", threads=1) as opened:
        yield opened


def theirs(folder: Path, beam_size: int) -> list[list[tuple[list[str], float]]]:
    """Pieces and scores of all hypotheses by CTranslate2."""
    pieces = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    results = open_peer(folder).translate_batch(
        pieces.encode(TEXTS, out_type=str),
        beam_size=beam_size,
        num_hypotheses=beam_size,
        max_decoding_length=30,
        return_end_token=True,
        return_scores=True,
    )
    return [list(zip(result.hypotheses, result.scores, strict=True)) for result in results]


def ours(translator: Translator, beam_size: int) -> list[Translation]:
    return translator.translate(TEXTS, beam_size=beam_size, num_hypotheses=beam_size, max_length=30)


def assert_equal(translator: Translator, folder: Path, beam_size: int) -> None:
    for translation, expected in zip(ours(translator, beam_size), theirs(folder, beam_size), strict=True):
        pieces, scores = zip(*expected, strict=True)
        assert [translator.tokenizer.tokens(one.token_ids) for one in translation.hypotheses] == list(pieces)
        assert [one.score for one in translation.hypotheses] == pytest.approx(scores, abs=1e-4)


def test_hypotheses_and_texts_are_equal(translator: Translator, folder_of: FolderOf, tiny_bundle: Path) -> None:
    for beam_size in (1, 2, 4):
        assert_equal(translator, folder_of(None), beam_size)
    with Translator(tiny_bundle, precision="fp32", threads=1) as trained:
        assert [one.text for one in ours(translator, 1)] == [one.text for one in ours(trained, 1)]


def test_an_int8_folder_translates_alike(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = folder_of("int8")
    assert import_fp32(folder, tmp_path / "bundle", "int8").manifest.stored_precision == "int8"
    with Translator(tmp_path / "bundle", precision="fp32", threads=1) as translator:
        assert_equal(translator, folder, 1)


def test_gated_layers_with_rms_norms_are_exported(vocabulary: Vocabulary, tmp_path: Path) -> None:
    words = tokens_of(vocabulary.model)
    spec = random_spec((words, words), ffn_glu=True, rms_norm=True, layernorm_embedding=True)
    folder = save(spec, tmp_path / "model", vocabulary.model)
    import_fp32(folder, tmp_path / "bundle")
    with Translator(tmp_path / "bundle", precision="fp32", threads=1) as translator:
        assert_equal(translator, folder, 1)


def test_defaults_are_those_of_ctranslate2(translator: Translator, folder_of: FolderOf) -> None:
    generation = translator.manifest.generation
    assert (generation.beam_size, generation.length_penalty, generation.early_stopping) == (2, 1.0, True)
    assert (generation.min_length, generation.max_length) == (1, 64)
    checkpoint = translator.manifest.provenance.checkpoint
    assert checkpoint is not None
    assert checkpoint.weights.keys() == {"model.bin"}
    assert translator.manifest.languages.default is not None


@pytest.fixture
def copy(folder_of: FolderOf, tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return Path(shutil.copytree(folder_of(None), tmp_path / "copy"))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        import_fp32(folder, folder.parent / "bundle")
    assert not (folder.parent / "bundle").exists()
    return "\n".join(raised.value.problems)


def without_pieces(folder: Path) -> None:
    (folder / "sentencepiece.model").unlink()


def with_unknown_pieces(folder: Path) -> None:
    without_pieces(folder)
    for name in ("a.model", "b.model"):
        (folder / name).touch()


def with_more_tokens(folder: Path) -> None:
    path = folder / "shared_vocabulary.json"
    path.write_text(json.dumps([*json.loads(path.read_text()), *(f"more{number}" for number in range(9))]))


@pytest.mark.parametrize(
    ("edit", "problems"),
    [
        (without_pieces, ["has no SentencePiece model: copy the model's into it, as sentencepiece.model, or as"]),
        (with_unknown_pieces, ["the roles of a.model, b.model are unknown"]),
        (lambda folder: (folder / "shared_vocabulary.json").unlink(), ["its vocabulary is missing"]),
        (
            lambda folder: (folder / "shared_vocabulary.json").write_text('{"a": 1}'),
            ["shared_vocabulary.json is no list of tokens"],
        ),
        (with_more_tokens, ["but the model's ids end at"]),
        (
            lambda folder: change(folder, "config.json", eos_token=5, layer_norm_epsilon="small", quantization_type=1),
            [
                "eos_token of config.json must be a token, it is 5",
                "layer_norm_epsilon of config.json must be a number below 1, it is 'small'",
                "quantization_type of config.json is set",
            ],
        ),
        (
            lambda folder: change(folder, "config.json", decoder_start_token=None),
            ["leaves the decoder's start token to the caller, and no languages name one"],
        ),
        (
            lambda folder: change(folder, "config.json", decoder_start_token="<begin>"),
            ["the target vocabulary has no '<begin>'"],
        ),
    ],
    ids=range(8),
)
def test_changed_folders_are_refused(edit: Callable[[Path], object], problems: list[str], copy: Path) -> None:
    edit(copy)
    said = refusal(copy)
    for problem in problems:
        assert problem in said


def test_unnamed_languages_are_asked_for(copy: Path) -> None:
    with pytest.raises(CheckpointError, match="--source-language"):
        import_folder(copy, copy.parent / "bundle", precisions=("fp32",))


def test_a_text_vocabulary_is_read(copy: Path) -> None:
    path = copy / "shared_vocabulary.json"
    (copy / "shared_vocabulary.txt").write_text("".join(f"{token}\n" for token in json.loads(path.read_text())))
    path.unlink()
    assert import_fp32(copy, copy.parent / "bundle").manifest.name == "copy"
