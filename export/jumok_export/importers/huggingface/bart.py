"""Marian, M2M100, NLLB, BART, mBART and Pegasus: Transformers with absolute positions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.parameters import Weights
from jumok_export.importers.huggingface.settings import MOST_LAYERS, MOST_POSITIONS, Settings
from jumok_export.models.positions import Positions, PositionsWithoutPadding, fairseq_positions, halved_positions
from jumok_export.models.transformer import Transformer, TransformerSizes

ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
"""Other names of fields in config.json."""

_NAMES = (
    ("encoder.", "model.encoder.layers."),
    ("decoder.", "model.decoder.layers."),
    ("self_attention_residual.norm", "self_attn_layer_norm"),
    ("cross_attention_residual.norm", "encoder_attn_layer_norm"),
    ("feed_forward_residual.norm", "final_layer_norm"),
    ("self_attention", "self_attn"),
    ("cross_attention", "encoder_attn"),
    ("query_projection", "q_proj"),
    ("key_projection", "k_proj"),
    ("value_projection", "v_proj"),
    ("output_projection", "out_proj"),
    ("feed_forward.0", "fc1"),
    ("feed_forward.3", "fc2"),
    ("encoder_norm", "model.encoder.layer_norm"),
    ("decoder_norm", "model.decoder.layer_norm"),
    ("source_norm", "model.encoder.layernorm_embedding"),
    ("target_norm", "model.decoder.layernorm_embedding"),
)
"""Replacements from our parameters' names to names in checkpoints, in this order."""

_SHARED, _ENCODER, _DECODER, _HEAD = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
EMBEDDINGS = (_SHARED, _ENCODER, _DECODER, _HEAD)
"""Names of the embeddings in a checkpoint, which has at least one."""
_BIAS = "final_logits_bias"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Properties and defaults of one family.

    Attributes:
        name: `model_type` of transformers.
        norm: order of normalisations; see `TransformerSizes`.
        norm_embeddings: True to normalise the first layer's input.
        output_bias: True if logits may have a bias.
        two_vocabularies: True if source and target may have a vocabulary each.
        positions: function that makes the positions of "encoder" or "decoder", given [positions, width] and the
            padding token.
        vocabulary: default number of tokens.
        pad: default id of the padding token.
        activation: default activation.
        scale_embeddings: default of scaled embeddings.
    """

    name: str
    norm: Literal["pre", "post"]
    norm_embeddings: bool
    output_bias: bool
    two_vocabularies: bool
    positions: Callable[[Weights, str, tuple[int, int], int], Positions]
    vocabulary: int
    pad: int
    activation: str
    scale_embeddings: bool


def _halved_positions(weights: Weights, side: str, shape: tuple[int, int], pad: int) -> Positions:
    stored = f"model.{side}.embed_positions.weight"
    return Positions(weights.take(stored, shape) if stored in weights else halved_positions(*shape))


def _m2m100_positions(weights: Weights, side: str, shape: tuple[int, int], pad: int) -> Positions:
    # Positions are counted from the id after the padding token's, as in fairseq.
    return PositionsWithoutPadding(fairseq_positions(shape[0] + pad + 1, shape[1])[pad + 1 :].clone(), pad)


def _learned_positions(weights: Weights, side: str, shape: tuple[int, int], pad: int) -> Positions:
    # The first two rows of the table are no positions, for any padding token.
    return Positions(weights.take(f"model.{side}.embed_positions.weight", (shape[0] + 2, shape[1]))[2:].clone())


MARIAN = Family(
    name="marian",
    norm="post",
    norm_embeddings=False,
    output_bias=True,
    two_vocabularies=True,
    positions=_halved_positions,
    vocabulary=58101,
    pad=58100,
    activation="gelu",
    scale_embeddings=False,
)
M2M100 = Family(
    name="m2m_100",
    norm="pre",
    norm_embeddings=False,
    output_bias=False,
    two_vocabularies=False,
    positions=_m2m100_positions,
    vocabulary=128112,
    pad=1,
    activation="relu",
    scale_embeddings=True,
)
BART = Family(
    name="bart",
    norm="post",
    norm_embeddings=True,
    output_bias=True,
    two_vocabularies=False,
    positions=_learned_positions,
    vocabulary=50265,
    pad=1,
    activation="gelu",
    scale_embeddings=False,
)
MBART = replace(BART, name="mbart", norm="pre")
PEGASUS = replace(MBART, name="pegasus", norm_embeddings=False, positions=_halved_positions, pad=0)


def build(family: Family, settings: Settings, weights: Weights) -> ImportedModel:
    """Build a model of one of the families.

    Raises:
        CheckpointError: the configuration has impossible sizes.
    """
    vocabulary = settings.integer("vocab_size", family.vocabulary)
    one = not family.two_vocabularies or settings.flag("share_encoder_decoder_embeddings", default=True)
    two = not one and settings.given("decoder_vocab_size")
    target_vocabulary = settings.integer("decoder_vocab_size", vocabulary) if two else vocabulary
    pad = settings.integer("pad_token_id", family.pad, least=0)
    limit = settings.integer("max_position_embeddings", 1024, most=MOST_POSITIONS)
    tie = settings.flag("tie_word_embeddings", default=True)
    names = _embedding_names(weights, one_vocabulary=one, tie=tie)
    sizes = TransformerSizes(
        source_vocabulary=vocabulary,
        target_vocabulary=target_vocabulary,
        width=settings.integer("d_model", 1024, least=4),
        heads=settings.integer("encoder_attention_heads", 16),
        feed_forward=settings.integer("encoder_ffn_dim", 4096),
        encoder_layers=settings.integer("encoder_layers", 12, most=MOST_LAYERS),
        decoder_layers=settings.integer("decoder_layers", 12, most=MOST_LAYERS),
        decoder_heads=settings.integer("decoder_attention_heads", 16),
        decoder_feed_forward=settings.integer("decoder_ffn_dim", 4096),
        norm=family.norm,
        activation=settings.activation("activation_function", family.activation),
        scale_embeddings=settings.flag("scale_embedding", default=family.scale_embeddings),
        norm_embeddings=family.norm_embeddings,
        share_embeddings=vocabulary == target_vocabulary and weights.same(names[_ENCODER], names[_DECODER]),
        tie_output=weights.same(names[_DECODER], names[_HEAD]),
        dropout=0.0,
    )
    settings.divisible("d_model", "encoder_attention_heads", (sizes.width, sizes.heads))
    settings.divisible("d_model", "decoder_attention_heads", (sizes.width, sizes.decoder_layer.heads))
    settings.within("pad_token_id", pad, vocabulary)
    settings.table("max_position_embeddings and d_model", limit + pad + 2, sizes.width)
    settings.require_sizes()
    given: dict[str, Tensor] = {}
    if family.output_bias and _BIAS in weights:
        bias = weights.take(_BIAS, (1, target_vocabulary))
        if bias.any():
            sizes = replace(sizes, output_bias=True)
            given["output.bias"] = bias[0]
    source_positions, target_positions = (
        family.positions(weights, side, (limit, sizes.width), pad) for side in ("encoder", "decoder")
    )
    with torch.device("meta"):
        model = Transformer(sizes, source_positions=source_positions, target_positions=target_positions)
    own = {"source_embedding": _ENCODER, "target_embedding": _DECODER, "output": _HEAD}
    weights.fill(model, lambda name: names.get(own.get(name.removesuffix(".weight"), "")) or _stored_name(name), given)
    weights.take_copies((_SHARED, _HEAD, _DECODER, _ENCODER))
    return ImportedModel(
        model=model.eval(),
        family=family.name,
        source_vocabulary=vocabulary,
        target_vocabulary=target_vocabulary,
        pad=pad,
        max_source_length=limit,
        max_target_length=limit,
        left_out=weights.left_out,
        unused=weights.unused,
    )


def _embedding_names(weights: Weights, *, one_vocabulary: bool, tie: bool) -> dict[str, str]:
    """Names of the stored tensors of both embeddings and the output projection."""
    names = {name: name for name in (_ENCODER, _DECODER, _HEAD)}
    if one_vocabulary:
        # Before version 5 of transformers, untied output projections left the two embeddings tied.
        return names | weights.tied((_SHARED, _HEAD, _DECODER, _ENCODER) if tie else (_SHARED, _DECODER, _ENCODER))
    return names | (weights.tied((_DECODER, _HEAD)) if tie else {})


def _stored_name(name: str) -> str:
    for ours, theirs in _NAMES:
        name = name.replace(ours, theirs, 1)
    return name
