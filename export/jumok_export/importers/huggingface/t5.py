"""T5 of any version, mT5 and umT5: their config.json and the names of their weights."""

import math
import re
from dataclasses import dataclass

import torch

from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.parameters import Weights
from jumok_export.importers.huggingface.settings import MOST_LAYERS, MOST_POSITIONS, Settings
from jumok_export.models.t5 import T5, T5Sizes

ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
"""Other names of fields in config.json."""

_NAMES = (
    ("self_attention_residual.norm", "layer.0.layer_norm"),
    ("self_attention", "layer.0.SelfAttention"),
    ("cross_attention_residual.norm", "layer.1.layer_norm"),
    ("cross_attention", "layer.1.EncDecAttention"),
    ("query_projection", "q"),
    ("key_projection", "k"),
    ("value_projection", "v"),
    ("output_projection", "o"),
    ("feed_forward_residual.norm", "layer.{last}.layer_norm"),
    ("feed_forward.0", "layer.{last}.DenseReluDense.wi"),
    ("feed_forward.3", "layer.{last}.DenseReluDense.wo"),
    ("feed_forward.gate", "layer.{last}.DenseReluDense.wi_0"),
    ("feed_forward.up", "layer.{last}.DenseReluDense.wi_1"),
    ("feed_forward.down", "layer.{last}.DenseReluDense.wo"),
    ("encoder_norm", "encoder.final_layer_norm"),
    ("decoder_norm", "decoder.final_layer_norm"),
)
"""Replacements from our parameters' names to names in checkpoints, in this order."""

_BIAS = re.compile(r"(encoder|decoder)_positions\.(\d+)\.bias")

_SHARED, _ENCODER, _DECODER, _HEAD = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)
EMBEDDINGS = (_SHARED, _ENCODER, _DECODER, _HEAD)
"""Names of the embeddings in a checkpoint, which has at least one."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Properties and defaults of one family.

    Attributes:
        name: `model_type` of transformers.
        shared_positions: see `T5Sizes`.
        scales_output: True if the configuration may scale the output projection's input.
        vocabulary: default number of tokens.
        feed_forward: default width of hidden layers.
        layers: default number of layers.
        heads: default number of heads.
        projection: default of `feed_forward_proj`.
    """

    name: str
    shared_positions: bool = True
    scales_output: bool = True
    vocabulary: int = 250112
    feed_forward: int = 1024
    layers: int = 8
    heads: int = 6
    projection: str = "gated-gelu"


T5_FAMILY = Family(name="t5", vocabulary=32128, feed_forward=2048, layers=6, heads=8, projection="relu")
MT5_FAMILY = Family(name="mt5", scales_output=False)
UMT5_FAMILY = Family(name="umt5", shared_positions=False)


def build(family: Family, settings: Settings, weights: Weights) -> ImportedModel:
    """Build a model of one of the families.

    Raises:
        CheckpointError: the configuration has impossible sizes.
    """
    vocabulary = settings.integer("vocab_size", family.vocabulary)
    pad = settings.integer("pad_token_id", 0, least=0)
    layers = settings.integer("num_layers", family.layers, most=MOST_LAYERS)
    buckets = settings.integer("relative_attention_num_buckets", 32, least=4)
    max_distance = settings.integer("relative_attention_max_distance", 128)
    settings.within("pad_token_id", pad, vocabulary)
    settings.distances(buckets, max_distance)
    # Embeddings and output projection are tied for any configuration, unless their values differ.
    names = weights.tied((_SHARED, _ENCODER, _DECODER, _HEAD))
    projection = settings.text("feed_forward_proj", family.projection)
    named = {"gated-gelu": "gelu_new"}.get(projection, projection.rpartition("-")[2])
    sizes = T5Sizes(
        vocabulary=vocabulary,
        width=settings.integer("d_model", 512),
        heads=settings.integer("num_heads", family.heads),
        head_width=settings.integer("d_kv", 64),
        feed_forward=settings.integer("d_ff", family.feed_forward),
        encoder_layers=layers,
        decoder_layers=settings.integer("num_decoder_layers", layers, most=MOST_LAYERS)
        if settings.given("num_decoder_layers")
        else layers,
        buckets=buckets,
        max_distance=max_distance,
        epsilon=settings.number("layer_norm_epsilon", 1e-6),
        activation=settings.activation("dense_act_fn", named),
        gated=settings.flag("is_gated_act", default=projection.startswith("gated-")),
        share_embeddings=weights.same(names[_ENCODER], names[_DECODER]),
        tie_output=weights.same(names[_DECODER], names[_HEAD]),
        shared_positions=family.shared_positions,
        scale_output=family.scales_output
        and settings.flag("scale_decoder_outputs", default=settings.flag("tie_word_embeddings", default=True)),
    )
    settings.require_sizes()
    limit = usual_limit(sizes, settings.integer("n_positions", 512, most=MOST_POSITIONS))
    with torch.device("meta"):
        model = T5(sizes)
    own = {"source_embedding": _ENCODER, "target_embedding": _DECODER, "output": _HEAD}
    weights.fill(model, lambda name: names.get(own.get(name.removesuffix(".weight"), "")) or _stored_name(name), {})
    weights.take_copies((_SHARED, _HEAD, _DECODER, _ENCODER))
    return ImportedModel(
        model=model.eval(),
        family=family.name,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        pad=pad,
        max_source_length=limit,
        max_target_length=limit,
        bounded=False,  # by relative positions, any length can be read; n_positions is a length of training
        left_out=weights.left_out,
        unused=weights.unused,
    )


def usual_limit(sizes: T5Sizes, trained: int) -> int:
    """Longest power of two, from the length of training, whose attention weights take 256 MiB."""
    attention = sizes.heads * max(sizes.encoder_layers, sizes.decoder_layers)
    limit = 1 << int(math.log2(math.sqrt(2**28 / 4 / attention)))
    return max(trained, limit)


def _stored_name(name: str) -> str:
    bias = _BIAS.match(name)
    if bias is not None:
        return f"{bias[1]}.block.{bias[2]}.layer.0.SelfAttention.relative_attention_bias.weight"
    for ours, theirs in _NAMES:
        name = name.replace(ours, theirs, 1)
    side, _, rest = name.partition(".")
    if rest.startswith("final_layer_norm"):
        return name
    return f"{side}.block.{rest}".format(last={"encoder": 1, "decoder": 2}[side])
