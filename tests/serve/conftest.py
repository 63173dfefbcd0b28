"""A tiny real bundle: SentencePiece models trained on a few sentences, and ONNX graphs that look embeddings up."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import pytest
import sentencepiece
from onnx import TensorProto, helper, numpy_helper

from jumok_serve.bundle.bundle import write_bundle
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import (
    Architecture,
    Check,
    GenerationDefaults,
    GraphSpec,
    Limits,
    ManifestDraft,
    PrecisionVariant,
    Score,
    SpecialTokens,
    TensorSpec,
    VerificationReport,
)
from jumok_serve.manifest.parts import Provenance, TrainingData
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from jumok_serve.translator import Translator

ENGLISH = (
    "a man in a blue shirt is standing on a ladder .",
    "two young , white males are outside near many bushes .",
    "a little girl climbing into a wooden playhouse .",
)
GERMAN = (
    "ein Mann in einem blauen Hemd steht auf einer Leiter .",
    "zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche .",
    "ein kleines Mädchen klettert in ein Spielhaus aus Holz .",
)
PAD, UNK, START, EOS = range(4)
WIDTH = 2


def train_tokenizer(sentences: tuple[str, ...], path: Path) -> Path:
    with path.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences * 4),
            model_writer=stream,
            vocab_size=90,
            hard_vocab_limit=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=START,
            eos_id=EOS,
            minloglevel=2,
        )
    return path


@pytest.fixture(scope="session")
def shared_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model of both languages."""
    return train_tokenizer(ENGLISH + GERMAN, tmp_path_factory.mktemp("tokenizer") / "shared.model")


@pytest.fixture(scope="session")
def english_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(ENGLISH, tmp_path_factory.mktemp("tokenizer") / "en.model")


@pytest.fixture(scope="session")
def german_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(GERMAN, tmp_path_factory.mktemp("tokenizer") / "de.model")


def lookup_graph(ids: TensorSpec, rows: TensorSpec, table: np.ndarray) -> bytes:
    """An ONNX graph that maps each id to a row of ``table`` [V, width]."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", ids.name], [rows.name], axis=0)],
        "lookup",
        [helper.make_tensor_value_info(ids.name, TensorProto.INT64, ids.axes)],
        [helper.make_tensor_value_info(rows.name, TensorProto.FLOAT, rows.axes)],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="session")
def build_toy(shared_model: Path) -> Callable[[Path], ManifestDraft]:
    """A `build` argument of `write_bundle`: writes the toy's files into a folder and returns its manifest."""
    tokenizer = SentencePieceTokenizer(shared_model)

    def build(folder: Path) -> ManifestDraft:
        random = np.random.default_rng(7)
        vocab_size = tokenizer.vocab_size
        table = random.standard_normal((vocab_size, WIDTH), dtype=np.float32)  # [V, width]
        logits = random.standard_normal((vocab_size, vocab_size), dtype=np.float32)  # [V, V]
        source_ids = TensorSpec(name="source_ids", dtype="int64", axes=("B", "S"))
        memory = TensorSpec(name="memory.embedding", dtype="float32", axes=("B", "S", WIDTH))
        token_ids = TensorSpec(name="token_ids", dtype="int64", axes=("R",))
        scores = TensorSpec(name="logits", dtype="float32", axes=("R", vocab_size))
        (folder / "fp32").mkdir()
        (folder / "fp32/encoder.onnx").write_bytes(lookup_graph(source_ids, memory, table))
        (folder / "fp32/decoder.onnx").write_bytes(lookup_graph(token_ids, scores, logits))
        (folder / "fp32/weights.bin").write_bytes(table.tobytes() + logits.tobytes())
        (folder / "README.md").write_text("# A toy\n", encoding="utf-8")
        return ManifestDraft(
            name="toy-en-de",
            version="1.0",
            architecture=Architecture(family="lookup", sizes={"width": WIDTH, "tied": True}, parameters=table.size),
            languages=Languages.of_pair("en", "de", suffix=(3,)),
            special_tokens=SpecialTokens(pad=PAD, start=START, eos=(EOS,), unk=UNK, suppress=(PAD, START)),
            limits=Limits(max_source_length=32, max_target_length=48),
            generation=GenerationDefaults(beam_size=4, length_penalty=0.6, max_length=48),
            tokenizer=tokenizer.save(folder),
            precisions={
                "fp32": PrecisionVariant(
                    graphs={
                        "encoder": GraphSpec(file="fp32/encoder.onnx", inputs=(source_ids,), outputs=(memory,)),
                        "decoder": GraphSpec(file="fp32/decoder.onnx", inputs=(token_ids,), outputs=(scores,)),
                    },
                    weights="fp32/weights.bin",
                )
            },
            verification={
                "fp32": VerificationReport(
                    checks=(
                        Check(name="encoder", cases=40, worst=2.4e-6, limit=1e-4, passed=True),
                        Check(
                            name="decode",
                            cases=1200,
                            worst=3.1e-5,
                            limit=1e-4,
                            passed=True,
                            detail="12 steps with rows reordered, dropped and newly admitted; "
                            "difference of the logits as a share of what is tolerated",
                        ),
                    )
                )
            },
            scores=(
                Score(
                    metric="BLEU",
                    value=34.56,
                    signature="nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp",
                    dataset="test_2016_flickr",
                    precision="fp32",
                    beam_size=5,
                ),
            ),
            provenance=Provenance(
                created=datetime(2025, 3, 1, 12, 30, tzinfo=UTC),
                command="jumok export run/best.ckpt --out toy",
                versions={"torch": "2.6.0", "onnxruntime": "1.21.0"},
                training_data=TrainingData(description="three sentences", files={"train.en": "0" * 64}),
                configuration="[model]\nlayers = 0\n",
            ),
        )

    return build


@pytest.fixture
def toy_bundle(tmp_path: Path, build_toy: Callable[[Path], ManifestDraft]) -> Path:
    """A fresh copy of the toy bundle, free to be damaged."""
    return write_bundle(tmp_path / "toy", build_toy).path


@pytest.fixture
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    """The tiny model in fp32, with one replica."""
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator
