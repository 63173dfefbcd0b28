"""Loading of old, new and invalid checkpoints, against transformers."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from jumok_export.errors import ExportError
from jumok_export.importers.huggingface import CheckpointError, ImportedModel, build_model
from jumok_export.importers.huggingface.bart import ALIASES, BART, M2M100, MARIAN, MBART, PEGASUS
from jumok_export.importers.huggingface.bart import build as build_bart
from jumok_export.importers.huggingface.parameters import Weights
from jumok_export.importers.huggingface.settings import Settings
from jumok_export.importers.huggingface.t5 import ALIASES as T5_ALIASES
from jumok_export.importers.huggingface.t5 import MT5_FAMILY, T5_FAMILY, UMT5_FAMILY
from jumok_export.importers.huggingface.t5 import build as build_t5
from jumok_export.models.t5 import T5
from jumok_export.models.transformer import Transformer
from tests.support.checkpoints.random_checkpoints import MODELS, config_of, random_checkpoint, sentences, source_mask

Tensors = dict[str, Tensor]


close = functools.partial(torch.testing.assert_close, atol=1e-4, rtol=1e-5)


def logits(imported: ImportedModel, theirs: Any) -> Tensor:
    found: Tensor = imported.model(*sentences(theirs)[:-1])
    return found


def their_logits(theirs: Any) -> Tensor:
    source_ids, source_lengths, start_ids, target_ids, _ = sentences(theirs)
    mask = source_mask(source_ids, source_lengths)
    inputs = torch.cat((start_ids[:, None], target_ids[:, :-1]), dim=1)
    with torch.no_grad():
        expected: Tensor = theirs(input_ids=source_ids, attention_mask=mask, decoder_input_ids=inputs).logits
    return expected


def loaded(theirs: Any, tensors: Mapping[str, Tensor], folder: Path) -> Any:
    """Load these tensors with transformers."""
    theirs.config.save_pretrained(folder)
    apart = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(apart, folder / "model.safetensors", {"format": "pt"})
    return type(theirs).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_computed_with_in_float32(dtype: torch.dtype) -> None:
    theirs = random_checkpoint("bart")
    stored = {name: tensor.to(dtype) for name, tensor in theirs.state_dict().items()}
    imported = build_model(config_of(theirs), stored)
    assert {parameter.dtype for parameter in imported.model.parameters()} == {torch.float32}
    same = build_model(config_of(theirs), {name: tensor.float() for name, tensor in stored.items()})
    torch.testing.assert_close(logits(imported, theirs), logits(same, theirs), atol=0, rtol=0)


COPIES = ("shared.weight", "embed_tokens.weight", "lm_head.weight")
"""Ends of the names of an embedding's copies."""
STORED: dict[str, tuple[tuple[str, ...], str | None]] = {
    "all": (COPIES, None),
    "shared": (("shared.weight",), None),
    "head": (("lm_head.weight",), None),
    "encoder": (("encoder.embed_tokens.weight",), None),
    "decoder": (("decoder.embed_tokens.weight",), None),
    "both-sides": (("embed_tokens.weight",), None),
    "other-head": (COPIES, "lm_head.weight"),
    "other-encoder": (COPIES, "encoder.embed_tokens.weight"),
    "other-decoder": (COPIES, "decoder.embed_tokens.weight"),
    "other-shared": (COPIES, "shared.weight"),
}
"""Copies that are there, and one with other values."""


def with_copies(tensors: Tensors, kept: tuple[str, ...], changed: str | None = None) -> Tensors:
    return {
        name: value.flip(0) if changed and name.endswith(changed) else value
        for name, value in tensors.items()
        if not name.endswith(COPIES) or name.endswith(kept)
    }


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("name", ["marian", "m2m100", "bart", "mbart", "pegasus", "t5", "umt5"])
def test_tied_weights_are_resolved_as_by_transformers(name: str, stored: str, tmp_path: Path) -> None:
    theirs = random_checkpoint(name)
    tensors = with_copies(theirs.state_dict(), *STORED[stored])
    imported = build_model(config_of(theirs), tensors)
    expected = their_logits(loaded(theirs, tensors, tmp_path))
    close(logits(imported, theirs), expected)
    # One embedding is one tensor in the model too, and nothing of it is left over.
    model = imported.model
    assert isinstance(model, Transformer | T5)
    assert (model.output.weight is model.target_embedding.weight) == (stored not in {"other-head", "other-decoder"})
    assert (model.source_embedding is model.target_embedding) == (stored not in {"other-encoder", "other-decoder"})
    assert [name for name in imported.unused if not name.endswith("shared.weight")] == []
    assert bool(imported.unused) == (stored == "other-shared")


def test_an_untied_head_of_an_early_version_stands_beside_shared_embeddings() -> None:
    """Version 5 unties all of them; missing tensors show that an earlier version did not."""
    theirs = random_checkpoint("bart")
    tensors = {**with_copies(theirs.state_dict(), ("shared.weight",)), "lm_head.weight": theirs.lm_head.weight.flip(0)}
    imported = build_model({**config_of(theirs), "tie_word_embeddings": False}, tensors)
    # The head's rows are the tokens' in reverse order, so the logits are too.
    shift = theirs.final_logits_bias
    close(logits(imported, theirs) - shift, (their_logits(theirs) - shift).flip(-1))
    assert imported.unused == ()


def test_marians_stored_positions_win_over_computed_ones(tmp_path: Path) -> None:
    theirs = random_checkpoint("marian-uneven")
    names = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    stored = theirs.state_dict() | {name: torch.randn(20, 12) for name in names}
    imported = build_model(config_of(theirs), stored)
    expected = their_logits(loaded(theirs, stored, tmp_path))
    close(logits(imported, theirs), expected)
    assert not torch.allclose(expected, their_logits(theirs), atol=1e-2)


def test_unused_tensors_are_listed() -> None:
    theirs = random_checkpoint("m2m100")
    left = {
        "model.encoder.embed_positions.weights": torch.zeros(22, 24),
        "model.decoder.version": torch.zeros(1),
        "final_logits_bias": torch.zeros(1, 37),
    }
    imported = build_model(config_of(theirs), theirs.state_dict() | left)
    assert imported.unused == tuple(sorted(left))
    assert isinstance(imported.model, Transformer)
    assert imported.model.output.bias is None  # of zeros
    t5 = random_checkpoint("t5")
    old = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(8, 2)}
    assert build_model(config_of(t5), t5.state_dict() | old).unused == tuple(old)


def problems(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    with pytest.raises(ExportError, match=r"the checkpoint cannot be imported:\n  - ") as caught:
        build_model(config, tensors)
    assert isinstance(caught.value, CheckpointError)
    assert str(caught.value).count("\n") == len(caught.value.problems)
    return caught.value.problems


NOT_SUPPORTED = "architecture {} is not supported"
QUANTIZED = {"quantization_config": {"quant_method": "gptq"}}


def test_all_problems_are_reported_at_once() -> None:
    theirs = random_checkpoint("bart")
    tensors = theirs.state_dict()
    del tensors["model.encoder.layers.0.fc1.bias"]
    tensors["model.decoder.layers.0.fc2.weight"] = torch.zeros(24, 21)
    tensors["model.decoder.layers.0.fc1.weight"] = torch.zeros(20, 24, dtype=torch.int8)
    tensors["model.encoder.embed_positions.weight"] = torch.zeros(20, 24)
    found = problems({**config_of(theirs), "activation_function": "prelu", "per_layer_config": {"0": {}}}, tensors)
    assert len(found) == 6
    assert found[0] == "per_layer_config is set: layers that differ from one another are not supported"
    assert found[1].startswith("activation_function 'prelu' is not supported: there are relu, gelu, ")
    assert found[2:] == (
        "model.encoder.embed_positions.weight has shape (20, 24), expected (22, 24)",
        "model.encoder.layers.0.fc1.bias is missing",
        "model.decoder.layers.0.fc1.weight is int8: import the original weights instead of quantized ones",
        "model.decoder.layers.0.fc2.weight has shape (24, 21), expected (24, 20)",
    )


@pytest.mark.parametrize("name", ["bart", "t5"])
@pytest.mark.parametrize("beginning", ["module.", "model.", "net._orig_mod."])
def test_a_common_beginning_of_all_names_is_left_out(name: str, beginning: str) -> None:
    theirs = random_checkpoint(name)
    tensors = {beginning + own: tensor for own, tensor in theirs.state_dict().items()}
    imported = build_model(config_of(theirs), tensors)
    assert (imported.left_out, imported.unused) == (beginning, ())
    close(logits(imported, theirs), their_logits(theirs))
    assert build_model(config_of(theirs), theirs.state_dict()).left_out == ""
    # A beginning of some names is part of other names.
    found = problems(config_of(theirs), tensors | {"other": torch.zeros(1)})
    assert all(problem.endswith(" is missing") for problem in found)


def test_values_that_are_no_numbers_are_named_by_tensor() -> None:
    theirs = random_checkpoint("mbart")
    tensors = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    wrong = ["model.encoder.layers.0.fc1.bias", "model.decoder.layers.0.fc2.weight"]
    tensors[wrong[0]][3] = torch.nan
    tensors[wrong[1]][2, 1] = -torch.inf
    (problem,) = problems(config_of(theirs), tensors)
    assert problem == f"NaN or infinite values are in {', '.join(wrong)}: the weights are damaged"
    everywhere = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
    (problem,) = problems(config_of(theirs), everywhere)
    assert problem.count(", ") == 7
    assert " more: the weights are damaged" in problem


def test_a_missing_embedding_is_reported_once() -> None:
    for name in ("marian", "t5"):
        theirs = random_checkpoint(name)
        (problem,) = problems(config_of(theirs), with_copies(theirs.state_dict(), ()))
        assert problem.endswith("shared.weight is missing")
    untied = random_checkpoint("mbart-untied")
    stored = with_copies(untied.state_dict(), ("embed_tokens.weight",))
    assert problems(config_of(untied), stored) == ("lm_head.weight is missing",)


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("marian", {"d_model": 0}, "d_model must be an integer of at least 4, got 0"),
        ("marian", {"encoder_layers": "six"}, "encoder_layers must be an integer of at least 1, got 'six'"),
        ("marian", {"d_model": None}, "d_model must be an integer of at least 4, got None"),
        ("marian", {"encoder_attention_heads": 5}, "d_model must be a multiple of encoder_attention_heads, got 24 and"),
        ("marian", {"pad_token_id": None}, "pad_token_id must be an integer of at least 0, got None"),
        ("marian", {"pad_token_id": 37}, "pad_token_id must be less than the vocabulary's 37 tokens, got 37"),
        ("marian", {"scale_embedding": "yes"}, "scale_embedding must be true or false, got 'yes'"),
        ("marian", {"is_encoder_decoder": False}, "is_encoder_decoder is false: only models with encoder and decoder"),
        ("marian", {"is_decoder": True}, "is_decoder is true: only models with encoder and decoder"),
        ("t5", {"relative_attention_max_distance": 4}, "relative_attention_max_distance must be more than half of"),
        ("t5", {"relative_attention_num_buckets": 3}, "relative_attention_num_buckets must be an integer of at least"),
        ("t5", {"layer_norm_epsilon": "tiny"}, "layer_norm_epsilon must be a number from 0 to 16777216, got 'tiny'"),
        ("t5", {"feed_forward_proj": "gated-tanh", "dense_act_fn": "tanh"}, "dense_act_fn 'tanh' is not supported"),
    ],
)
def test_settings_without_a_model_are_named(name: str, fields: dict[str, Any], expected: str) -> None:
    theirs = random_checkpoint(name)
    found = problems(config_of(theirs) | fields, theirs.state_dict())
    assert any(each.startswith(expected) for each in found), found


HUGE = 10**400
SIZES = {
    "bart": ["vocab_size", "d_model", "encoder_attention_heads", "decoder_layers", "encoder_ffn_dim", "pad_token_id"],
    "marian": ["encoder_layers", "decoder_layers", "max_position_embeddings", "decoder_vocab_size"],
    "t5": ["num_layers", "num_decoder_layers", "d_kv", "n_positions", "relative_attention_num_buckets"],
}


@pytest.mark.parametrize("size", [10**9, HUGE, 1e300, float("inf"), float("nan"), -HUGE])
@pytest.mark.parametrize("kind", SIZES)
def test_huge_sizes_are_problems(kind: str, size: float) -> None:
    """Neither memory nor time grows with the number."""
    model = random_checkpoint(kind)
    given = config_of(model)
    for field in SIZES[kind]:
        if field == "decoder_vocab_size":
            given["share_encoder_decoder_embeddings"] = False
        found = problems({**given, field: size}, model.state_dict())
        assert any(field in problem and len(problem) < 500 for problem in found)


def test_a_table_of_positions_beyond_memory_is_refused() -> None:
    model = random_checkpoint("marian")
    found = problems({**config_of(model), "max_position_embeddings": 2**20, "d_model": 2**20}, model.state_dict())
    assert any("must make a table of at most" in problem for problem in found)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "architecture LlamaForCausalLM is not"),
        ({"architectures": ["BartForSequenceClassification"]}, "architecture BartForSequenceClassification is not"),
        ({"model_type": "bert"}, "model_type 'bert' is not supported: supported are MarianMTModel, M2M100For"),
        ({"architectures": ["LEDForConditionalGeneration"]}, f"{NOT_SUPPORTED} (its encoder attends within windows)"),
        ({"architectures": ["NllbMoeForConditionalGeneration"]}, f"{NOT_SUPPORTED} (its feed-forward layers are"),
        ({"model_type": "t5", "auto_map": {"AutoModel": "own.Own"}}, "auto_map names code of its own, which is never"),
        ({}, "model_type None is not supported: supported are MarianMTModel"),
        ({"architectures": ["MBartForConditionalGeneration"], "model_type": "bart"}, "architecture MBart"),
        ({"model_type": "t5", **QUANTIZED}, "its weights are quantized by 'gptq': import the original weights"),
    ],
)
def test_other_models_are_refused_by_name(config: dict[str, Any], expected: str) -> None:
    (problem,) = problems(config, {})
    assert problem.startswith(expected.format(*config.get("architectures", ())))


def test_an_architecture_and_its_quantization_are_refused_together() -> None:
    assert len(problems({"architectures": ["LlamaForCausalLM"], **QUANTIZED}, {})) == 2


def test_families_go_by_architecture_or_model_type() -> None:
    theirs = random_checkpoint("t5")
    config = config_of(theirs)
    for fields in ({"architectures": None}, {"architectures": ["T5WithLMHeadModel"], "model_type": None}):
        assert build_model(config | fields, theirs.state_dict()).family == "t5"


@pytest.mark.parametrize("family", [MARIAN, M2M100, BART, MBART, PEGASUS], ids=lambda family: str(family.name))
def test_defaults_are_those_of_transformers(family: Any) -> None:
    settings = Settings({}, ALIASES)
    imported = build_bart(family, settings, Weights({}))
    config = MODELS[family.name][0]()
    assert isinstance(imported.model, Transformer)
    sizes = imported.model.sizes
    assert settings.problems == []
    assert (imported.pad, imported.max_source_length) == (config.pad_token_id, config.max_position_embeddings)
    for ours, name in (
        ("source_vocabulary", "vocab_size"),
        ("target_vocabulary", "vocab_size"),
        ("width", "d_model"),
        ("activation", "activation_function"),
        ("encoder_layers", "encoder_layers"),
        ("heads", "encoder_attention_heads"),
        ("feed_forward", "encoder_ffn_dim"),
        ("decoder_layers", "decoder_layers"),
        ("decoder_heads", "decoder_attention_heads"),
        ("decoder_feed_forward", "decoder_ffn_dim"),
        ("scale_embeddings", "scale_embedding"),
    ):
        assert getattr(sizes, ours) == getattr(config, name), ours


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": True, "scale_decoder_outputs": False},
        {"feed_forward_proj": "gated-gelu"},
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu", "is_gated_act": False},
        {"feed_forward_proj": "gelu"},
        {"feed_forward_proj": "gated-silu", "num_layers": 4},
        {"num_layers": 3, "num_hidden_layers": 5, "num_decoder_layers": 2, "head_dim": 7, "hidden_size": 40},
        {"num_heads": 3, "num_attention_heads": 4, "n_positions": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", [T5_FAMILY, MT5_FAMILY, UMT5_FAMILY], ids=lambda family: str(family.name))
def test_a_t5_is_described_as_in_transformers(family: Any, fields: dict[str, Any]) -> None:
    theirs = MODELS[family.name][0].from_dict(fields)
    imported = build_t5(family, Settings(fields, T5_ALIASES), Weights({}))
    assert isinstance(imported.model, T5)
    sizes = imported.model.sizes
    assert sizes.scale_output == (family is not MT5_FAMILY and theirs.scale_decoder_outputs)
    assert sizes.gated == theirs.is_gated_act
    assert sizes.activation == {"gelu_new": "gelu_tanh"}.get(theirs.dense_act_fn, theirs.dense_act_fn)
    assert (sizes.encoder_layers, sizes.decoder_layers) == (theirs.num_layers, theirs.num_decoder_layers)
    assert (sizes.width, sizes.heads, sizes.head_width) == (theirs.d_model, theirs.num_heads, theirs.d_kv)
    assert (sizes.vocabulary, sizes.feed_forward) == (theirs.vocab_size, theirs.d_ff)
    assert sizes.epsilon == theirs.layer_norm_epsilon
    assert sizes.buckets == theirs.relative_attention_num_buckets
    assert sizes.max_distance == theirs.relative_attention_max_distance
    assert imported.pad == theirs.pad_token_id


def test_other_names_of_fields_win_as_in_transformers() -> None:
    fields = {"d_model": 16, "hidden_size": 32, "num_hidden_layers": 3, "encoder_layers": 2, "num_attention_heads": 2}
    theirs = MODELS["marian"][0].from_dict(fields)
    model = build_bart(MARIAN, Settings(fields, ALIASES), Weights({})).model
    assert isinstance(model, Transformer)
    found = (model.sizes.width, model.sizes.encoder_layers, model.sizes.heads)
    assert found == (theirs.d_model, theirs.encoder_layers, theirs.encoder_attention_heads)
