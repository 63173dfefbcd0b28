"""Models of CTranslate2 folders compute what CTranslate2 computes, for each option of its specification."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ctranslate2.specs import Activation

from jumok_export.importers.ctranslate2.stored import ModelFile
from jumok_export.importers.ctranslate2.transformer import build_model
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.models.transformer import Transformer
from tests.support.checkpoints.ctranslate2_folders import SPECIAL, WIDTH, open_peer, random_spec, save

SOURCE = [*SPECIAL, *(f"s{number}" for number in range(9))]
TARGET = [*SPECIAL, *(f"t{number}" for number in range(7))]
SHARED = [*SOURCE, *TARGET[len(SPECIAL) :]]
SOURCES = [["s1", "s4", "s0", "s8", "s2", "s2", "s5"], ["s3"], ["s7", "s6", "s7", "s7"]]
TARGETS = [["t3", "t3", "t0"], ["t1", "t6", "t5", "t2", "t2", "t4", "t0", "t1"], ["t2"]]

OPTIONS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"pre_norm": False, "activation": Activation.SWISH},
    "learned positions": {"positions": 11, "tied": False},
    "norms of embeddings": {"layernorm_embedding": True, "activation": Activation.GELU},
    "no final norm": {"no_final_norm": True, "activation": Activation.GELUTanh},
    "no biases": {"biased": False, "activation": Activation.GELUSigmoid},
    "gated": {"ffn_glu": True, "activation": Activation.GELU},
    "RMS norms": {"rms_norm": True},
    "no scale": {"numbers": {"encoder.scale_embeddings": 1.0, "decoder.scale_embeddings": 1.0}},
    "a scale": {"numbers": {"encoder.scale_embeddings": 2.5, "decoder.scale_embeddings": 2.5}},
}


def scores_of(folder: Path) -> list[list[float]]:
    """CTranslate2's log-probabilities of the targets, the end included."""
    return [list(result.log_probs) for result in open_peer(folder).score_batch(SOURCES, TARGETS)]


def own_scores_of(model: ImportedModel, source: Sequence[str], target: Sequence[str]) -> list[list[float]]:
    """Log-probabilities of the same targets by our model."""
    scores = []
    for words, written in zip(SOURCES, TARGETS, strict=True):
        source_ids = torch.tensor([[source.index(word) for word in words]])
        target_ids = torch.tensor([[target.index(word) for word in [*written, "</s>"]]])
        lengths, start_ids = torch.tensor([len(words)]), torch.tensor([target.index("<s>")])
        with torch.no_grad():
            logits = model.model(source_ids, lengths, start_ids, target_ids)
        scores.append(logits.log_softmax(-1)[0].gather(1, target_ids[0][:, None])[:, 0].tolist())
    return scores


def build(folder: Path, **numbers: Any) -> ImportedModel:
    return build_model(ModelFile(folder / "model.bin"), epsilon=numbers.pop("epsilon", None), start=2, **numbers)


def assert_equal(folder: Path, source: Sequence[str] = SOURCE, target: Sequence[str] = TARGET, **numbers: Any) -> None:
    for ours, theirs in zip(own_scores_of(build(folder, **numbers), source, target), scores_of(folder), strict=True):
        assert ours == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_absolute_positions(option: str, tmp_path: Path) -> None:
    assert_equal(save(random_spec((SOURCE, TARGET), **OPTIONS[option]), tmp_path / "model"))


@pytest.mark.parametrize("quantization", ["int8", "int16", "float16", "int8_float16", "bfloat16", "int8_bfloat16"])
def test_quantized_weights_are_those_of_ctranslate2(quantization: str, tmp_path: Path) -> None:
    folder = save(random_spec((SOURCE, TARGET)), tmp_path / "model", quantization=quantization)
    assert_equal(folder)
    assert ModelFile(folder / "model.bin").quantized == quantization.startswith("int8")


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_relative_positions_of_t5(scaled: bool, gated: bool, tmp_path: Path) -> None:
    numbers = {"encoder.scale_embeddings": 1.0, "decoder.scale_embeddings": 1.0}
    if scaled:
        numbers["decoder.scale_outputs"] = WIDTH**-0.5
    options: dict[str, Any] = {"rms_norm": True, "relative_attention_bias": True, "ffn_glu": gated, "biased": False}
    spec = random_spec((SHARED, SHARED), numbers=numbers, **options)
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        layer.self_attention.queries_scale = np.float32(1)
        if hasattr(layer, "attention"):
            layer.attention.queries_scale = np.float32(1)
    assert_equal(save(spec, tmp_path / "model"), SHARED, SHARED)


def test_a_start_from_zero_and_an_epsilon_of_norms(tmp_path: Path) -> None:
    spec = random_spec((SOURCE, TARGET))
    spec.decoder.start_from_zero_embedding = True
    assert_equal(save(spec, tmp_path / "model"))
    with pytest.raises(CheckpointError, match="start token has the id 11, but the model's ids end at 10"):
        build_model(ModelFile(tmp_path / "model" / "model.bin"), epsilon=None, start=len(TARGET))
    spec = random_spec((SOURCE, TARGET))
    spec.config.layer_norm_epsilon = 0.25
    assert_equal(save(spec, tmp_path / "another"), epsilon=0.25)


def test_shared_weights_stay_shared(tmp_path: Path) -> None:
    spec = random_spec((TARGET, TARGET))
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight
    model = build(save(spec, tmp_path / "model", quantization="int8")).model
    assert isinstance(model, Transformer)
    assert model.source_embedding is model.target_embedding
    assert model.output.weight is model.target_embedding.weight


def test_sinusoidal_positions_have_the_wanted_number(tmp_path: Path) -> None:
    folder = save(random_spec((SOURCE, TARGET)), tmp_path / "model")
    assert build(folder).max_source_length == 512
    assert build(folder, positions=700).max_target_length == 700


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"with_relative_position": True}, "relative position representations (Shaw et al., 2018): not supported"),
        ({"multi_query_attention": True}, "fewer heads for keys and values than for queries: not supported"),
        ({"activation": Activation.Tanh}, "activation 5 is not supported"),
        ({"num_source_embeddings": 2}, "several features of each source token: not supported"),
    ],
)
def test_options_without_a_counterpart_are_refused(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Several at once."""
    spec = random_spec((SOURCE, TARGET), **options)
    if options.get("num_source_embeddings"):
        spec.register_source_vocabulary(SOURCE)
    if options.get("with_relative_position"):
        spec.decoder.final_logit_softcapping = np.float32(30)
    with pytest.raises(CheckpointError) as raised:
        build(save(spec, tmp_path / "model"))
    assert problem in str(raised.value)
    bounded = "bounded logits: not supported (decoder/final_logit_softcapping)" in str(raised.value)
    assert bounded == ("with_relative_position" in options)
