"""Folders of CTranslate2 with random weights, written by its own specifications and converters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import EmbeddingsMerge, TransformerSpec
from ctranslate2.specs.model_spec import visit_spec
from sentencepiece import SentencePieceProcessor

from jumok_export.models.transformer import Transformer

WIDTH, HEADS, FEED_FORWARD = 16, 2, 24
SPECIAL = ("<blank>", "<unk>", "<s>", "</s>")
"""Special tokens of OpenNMT-py."""


def random_spec(
    vocabularies: tuple[Sequence[str], Sequence[str]],
    *,
    seed: int = 1,
    layers: tuple[int, int] = (2, 1),
    tied: bool = True,
    positions: int | None = None,
    biased: bool = True,
    numbers: dict[str, float] | None = None,
    **options: Any,
) -> TransformerSpec:
    """Make a specification with random weights, as a converter fills one.

    Args:
        tied: True to use the target's embedding as output projection.
        positions: number of learned positions; None: sinusoidal ones.
        biased: True for biases in linear layers.
        numbers: values of optional attributes, by name.
        options: those of `TransformerSpec.from_config`.
    """
    random = np.random.default_rng(seed)
    spec = TransformerSpec.from_config(layers, HEADS, embeddings_merge=EmbeddingsMerge.CONCAT, **options)
    source, target = map(len, vocabularies)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return random.normal(0, 0.35, shape).astype(np.float32)

    def fill(owner: Any, name: str, value: object) -> None:
        layer, _, attribute = name.rpartition("/")
        kind = layer.rpartition("/")[2]
        given: Any = None
        if attribute in {"gamma", "beta"}:
            given = normal(WIDTH) + (attribute == "gamma")
        elif attribute == "weight" and kind.startswith(("embeddings", "projection")):
            given = normal(target if name.startswith("decoder") else source, WIDTH)
        elif attribute in {"weight", "bias"} and "linear" in kind:
            rows, columns = _linear(layer)
            given = normal(rows, columns) if attribute == "weight" else normal(rows) if biased else None
        elif attribute == "bias" and kind == "projection":
            given = normal(target) if biased else None
        elif attribute == "encodings":
            given = None if positions is None else normal(positions, WIDTH)
        elif attribute == "relative_attention_bias":
            given = normal(8, HEADS)
        elif attribute == "relative_attention_max_distance":
            given = np.dtype("int32").type(6)
        elif attribute in {"relative_position_keys", "relative_position_values"}:
            given = normal(5, WIDTH // HEADS)
        if given is not None:
            setattr(owner, attribute, given)

    visit_spec(spec, fill)
    if tied:
        spec.decoder.projection.weight = spec.decoder.embeddings.weight
    for side in (spec.encoder, spec.decoder):
        for layer in side.layer:
            attention = layer.self_attention
            if hasattr(attention, "relative_attention_bias"):
                attention.relative_attention_bias = side.layer[0].self_attention.relative_attention_bias
    for name, number in (numbers or {}).items():
        side, _, attribute = name.partition(".")
        setattr(getattr(spec, side), attribute, np.float32(number))
    spec.register_source_vocabulary(list(vocabularies[0]))
    spec.register_target_vocabulary(list(vocabularies[1]))
    return spec


def _linear(layer: str) -> tuple[int, int]:
    """Rows and columns of a linear layer."""
    *_, block, name = layer.split("/")
    if block == "ffn":
        return (WIDTH, FEED_FORWARD) if name == "linear_1" else (FEED_FORWARD, WIDTH)
    if block == "self_attention":
        return (3 * WIDTH if name == "linear_0" else WIDTH, WIDTH)
    return (2 * WIDTH if name == "linear_1" else WIDTH, WIDTH)


def save(spec: TransformerSpec, folder: Path, pieces: bytes | None = None, quantization: str | None = None) -> Path:
    """Write a specification as a converter does, with a SentencePiece model."""
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True)
    spec.save(str(folder))
    if pieces is not None:
        (folder / "sentencepiece.model").write_bytes(pieces)
    return folder


def tokens_of(pieces: bytes) -> list[str]:
    """Tokens of a SentencePiece model, by their numbers."""
    processor = SentencePieceProcessor(model_proto=pieces)
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def open_peer(folder: Path) -> ctranslate2.Translator:
    """Open a folder with CTranslate2, which rounds no activations."""
    return ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)


def spec_of(model: Transformer, tokens: Sequence[str], **options: Any) -> TransformerSpec:
    """Make the specification of our own model with pre-norm and one embedding.

    Args:
        options: those of `TransformerSpec.from_config`.
    """
    sizes = model.sizes
    spec = TransformerSpec.from_config((sizes.encoder_layers, sizes.decoder_layers), sizes.heads, **options)
    # Copies: a specification is scaled in place when it is quantized.
    weights = {name: values.detach().numpy().copy() for name, values in model.named_parameters(remove_duplicate=False)}

    def set_linear(layer: Any, *names: str) -> None:
        layer.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        layer.bias = np.concatenate([weights[f"{name}.bias"] for name in names])

    def set_norm(layer: Any, name: str) -> None:
        layer.gamma, layer.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def set_layers(side: Any, name: str, table: Any) -> None:
        side.position_encodings.encodings = table.numpy()
        set_norm(side.layer_norm, f"{name}_norm")
        for number, layer in enumerate(side.layer):
            base = f"{name}.{number}"
            parts = [f"{base}.self_attention.{part}_projection" for part in ("query", "key", "value", "output")]
            set_linear(layer.self_attention.linear[0], *parts[:3])
            set_linear(layer.self_attention.linear[1], parts[3])
            set_norm(layer.self_attention.layer_norm, f"{base}.self_attention_residual.norm")
            if hasattr(layer, "attention"):
                parts = [f"{base}.cross_attention.{part}_projection" for part in ("query", "key", "value", "output")]
                set_linear(layer.attention.linear[0], parts[0])
                set_linear(layer.attention.linear[1], *parts[1:3])
                set_linear(layer.attention.linear[2], parts[3])
                set_norm(layer.attention.layer_norm, f"{base}.cross_attention_residual.norm")
            set_linear(layer.ffn.linear_0, f"{base}.feed_forward.0")
            set_linear(layer.ffn.linear_1, f"{base}.feed_forward.3")
            set_norm(layer.ffn.layer_norm, f"{base}.feed_forward_residual.norm")

    set_layers(spec.encoder, "encoder", model.source_positions.table)
    set_layers(spec.decoder, "decoder", model.target_positions.table)
    spec.encoder.embeddings[0].weight = weights["source_embedding.weight"]
    spec.decoder.embeddings.weight = weights["target_embedding.weight"]
    spec.decoder.projection.weight = weights["output.weight"]
    spec.config.add_source_eos = True
    spec.register_source_vocabulary(list(tokens))
    spec.register_target_vocabulary(list(tokens))
    return spec
