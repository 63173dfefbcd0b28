"""Imports of Marian models: what a bundle keeps of the files, and equal translations of other engines."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from jumok_export.importers.marian.binary_file import read_binary
from jumok_export.importers.marian.stored import Quantized
from jumok_export.importers.recognition import recognise
from jumok_export.models.positions import fairseq_positions
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.native import library
from jumok_serve.runtime.device import automatic_precision
from tests.support.checkpoints.marian_folders import ALPHA, STUDENT, student_lists
from tests.support.checkpoints.tokenizer_checkpoints import lines

TEXTS = lines("en")[:24]


def tensors(bundle: Path, precision: str, graph: str) -> dict[str, NDArray[Any]]:
    manifest = Bundle.open(bundle).manifest
    model = onnx.load(bundle / manifest.precisions[precision].graphs[graph].file)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_folder_and_a_file_are_recognised(student: Path, release: Path) -> None:
    for path in (student, student / STUDENT, release):
        assert recognise(path).name == "a Marian model"


def test_a_student_keeps_its_languages_tokens_and_shortlist(student: Path) -> None:
    bundle = Bundle.open(student / "bundle")
    manifest = bundle.manifest
    assert manifest.architecture.family == "marian-ssru"
    assert (manifest.languages.default.source, manifest.languages.default.target) == ("en", "de")  # type: ignore[union-attr]
    assert manifest.languages.sources["en"].suffix == (0,)
    assert (manifest.special_tokens.eos, manifest.special_tokens.suppress) == ((0,), (1,))
    assert manifest.generation.beam_size == 1
    assert manifest.stored_precision == "int8"
    assert automatic_precision(manifest, "cpu") == "int8"
    assert "head 0 of the decoder's layer 1 was trained to align" in manifest.provenance.notes
    assert json.loads(manifest.provenance.configuration)["dec-cell"] == "ssru"
    assert manifest.provenance.checkpoint is not None
    assert list(manifest.provenance.checkpoint.weights) == [STUDENT]
    listed = bundle.shortlist()
    size = bundle.tokenizer.vocab_size
    for token in (5, 77):
        expected = {*range(40), token, *student_lists(size)[token]} - {1}
        assert {*listed.of([token]).tolist()} == expected


def test_8_bit_weights_are_used_as_they_are(student: Path) -> None:
    file = read_binary(student / STUDENT)
    given = {name: item for name, item in file.items.items() if isinstance(item, Quantized) and item.values.size > 1}
    assert given
    for graph, start in (("encoder", "encoder"), ("decoder", "decoder")):
        found = tensors(student / "bundle", "int8", graph)
        stored = [tensor for tensor in found.values() if tensor.dtype == np.int8 and tensor.ndim == 2]
        assert stored
        for name, item in given.items():
            # Keys and values of the source are computed by the encoder.
            in_encoder = name.startswith("encoder") or name.endswith(("context_Wk", "context_Wv"))
            if name != "Wemb" and in_encoder != (start == "encoder"):
                continue
            values = item.values
            assert any(np.array_equal(values, tensor) or np.array_equal(values.T, tensor) for tensor in stored), (
                f"{name} is not among the weights of the {graph}"
            )


def test_alphas_are_the_scales_of_activations(student: Path) -> None:
    manifest = Bundle.open(student / "bundle").manifest
    for graph in ("encoder", "decoder"):
        model = onnx.load(student / "bundle" / manifest.precisions["int8"].graphs[graph].file)
        constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        rounding = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
        assert rounding
        for node in rounding:
            assert constants[node.input[1]] == pytest.approx(1 / ALPHA)
            assert constants[node.input[2]] == 128


@pytest.mark.skipif(library() is None, reason="no kernels of these sources, or an old processor")
def test_native_graphs_have_every_norm_in_an_operator_with_its_sum(student: Path) -> None:
    graphs = Bundle.open(student / "bundle").manifest.precisions["int8"].graphs
    for name, products, units in (("encoder", 4, 0), ("decoder", 4, 2), ("decoder_shortlist", 4, 2)):
        model = onnx.load(student / "bundle" / graphs[f"{name}_native"].file, load_external_data=False)
        found = Counter(node.op_type for node in model.graph.node)
        assert "LayerNormalization" not in found
        assert found["ProductAddNormQuantized"] + found["ProductAddNorm"] == products
        assert found["SsruAddNormQuantized"] == units
        norms = [node for node in model.graph.node if "AddNorm" in node.op_type]
        assert all(("in_order", 1) in [(each.name, each.i) for each in node.attribute] for node in norms)
        assert found["ListedProduct"] == ("shortlist" in name)
        assert found.keys().isdisjoint({"ListedLogits", "If", "MatMulIntegerToFloat"})
        assert found.keys().isdisjoint({"AddNormQuantized", "Sigmoid", "GatherND", "Transpose"})


@pytest.mark.skipif(library() is None, reason="no kernels of these sources, or an old processor")
def test_memory_and_state_stay_in_fp32(student: Path) -> None:
    """As in Marian: int8 keys and values would add an error that its translations do not have."""
    graphs = Bundle.open(student / "bundle").manifest.precisions["int8"].graphs
    for name in ("encoder_native", "decoder_native", "decoder_shortlist_native"):
        specs = (*graphs[name].inputs, *graphs[name].outputs)
        kept = {spec.name: spec.dtype for spec in specs if "memory." in spec.name or "state." in spec.name}
        assert kept
        assert set(kept.values()) == {"float32"}


def marian_positions(dim: int, num_positions: int = 2048) -> NDArray[np.float32]:
    table: NDArray[np.float32] = fairseq_positions(num_positions, dim).numpy()
    return table


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_release_translates_as_in_ctranslate2(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beam_size: int
) -> None:
    # CTranslate2's converter has the slowest angle of transformers, 10000 ** -(1 - 2 / width), in place of Marian's.
    monkeypatch.setattr("ctranslate2.converters.marian._make_sinusoidal_position_encodings", marian_positions)
    [model] = release.glob("*.npz")
    vocabulary = str(release / "opus.vocab.yml")
    ctranslate2.converters.MarianConverter(str(model), [vocabulary, vocabulary]).convert(str(tmp_path / "ct2"))
    peer = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", intra_threads=1)
    with Translator(release / "bundle", precision="fp32", threads=1) as translator:
        ours = translator.translate(
            TEXTS, beam_size=beam_size, num_hypotheses=beam_size, early_stopping=True, max_length=24
        )
        tokenizer = translator.tokenizer
        sources = [tokenizer.source_tokens(tokenizer.encode(text)) for text in TEXTS]
        theirs = peer.translate_batch(
            sources,
            beam_size=beam_size,
            num_hypotheses=beam_size,
            patience=1,
            length_penalty=1.0,
            max_decoding_length=24,
            disable_unk=True,
            return_end_token=True,
        )
        found = [[tokenizer.tokens(hypothesis.token_ids) for hypothesis in one.hypotheses] for one in ours]
    assert found == [one.hypotheses for one in theirs]
    assert len({tuple(hypotheses[0]) for hypotheses in found}) > len(TEXTS) // 4


def test_a_release_keeps_its_settings(release: Path) -> None:
    manifest = Bundle.open(release / "bundle").manifest
    assert manifest.name == "opus-mt-en-de"
    assert (manifest.languages.default.source, manifest.languages.default.target) == ("en", "de")  # type: ignore[union-attr]
    assert (manifest.generation.beam_size, manifest.generation.length_penalty) == (6, 1.0)
    assert manifest.generation.early_stopping is True
    assert manifest.shortlist is None
    assert manifest.stored_precision is None
