"""The repository's model in PyTorch and CTranslate2, with the weights of its int8 bundle."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import torch
from ctranslate2.converters.utils import fuse_linear
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
from ctranslate2.specs.common_spec import LayerNormSpec, LinearSpec
from ctranslate2.specs.transformer_spec import FeedForwardSpec, TransformerDecoderSpec, TransformerEncoderSpec
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from jumok_export.models.attention import MultiHeadAttention, unscale_queries
from jumok_export.models.layers import DecoderLayer, EncoderLayer, Residual
from jumok_export.models.transformer import Transformer
from jumok_export.training.checkpoint import build_model
from jumok_export.training.configuration_file import load_configuration
from jumok_serve.bundle.bundle import Bundle

GRAPH = "scorer"
"""The graph that has all weights."""


def dequantized(folder: Path) -> Transformer:
    """Load the model of an int8 bundle with its dequantized weights.

    Raises:
        ValueError: the model is not a Transformer, or some weights, which are named, cannot be assigned.
    """
    bundle = Bundle.open(folder)
    tokenizer = bundle.tokenizer
    configuration = load_configuration(folder / "config.toml")
    model = build_model(configuration, tokenizer.source_vocab_size, tokenizer.vocab_size).eval()
    if not isinstance(model, Transformer):
        raise ValueError(
            f"{folder}: only a Transformer's weights can be read back, and this is a {type(model).__name__}"
        )
    graph = onnx.load(folder / bundle.variant("int8").graphs[GRAPH].file).graph
    # A tied weight has several names, and the graph has any of them.
    parameters = dict(model.named_parameters(remove_duplicate=False))
    left = {id(parameter): name for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for exported, weight in _weights(graph):
            parameter = parameters.get(exported.removeprefix("model."))
            if parameter is not None and parameter.shape == weight.shape:
                parameter.copy_(torch.from_numpy(weight.copy()))
                left.pop(id(parameter), None)
    if left:
        raise ValueError(f"{folder}: the int8 graphs have no weights for {', '.join(left.values())}")
    unscale_queries(model)
    return model


def _weights(graph: onnx.GraphProto) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the parameters of a graph by name."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    yield from ((name, value) for name, value in constants.items() if value.dtype == np.float32)
    transposed = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        if node.op_type != "MatMulIntegerToFloat" or node.input[3] not in constants:
            continue
        _, matrix, _, scales, *_ = node.input
        # The matrix of a product is [K, N]; that of a linear layer, and an input of Transpose, is [N, K].
        stored = constants[transposed[matrix]] if matrix in transposed else constants[matrix].T
        centre = 128 if stored.dtype == np.uint8 else 0
        weight = (stored.astype(np.float32) - centre) * constants[scales][:, None]
        for name in (scales.partition(".scale")[0], *_names(node, readers)):
            yield name, weight


def _names(product: onnx.NodeProto, readers: dict[str, list[onnx.NodeProto]]) -> Iterator[str]:
    """Guess the name of a product's weight from its bias or output, as exports may drop the name.

    The bias is an input of the product, or of an Add after it, perhaps with a Mul by the scales of rows between.
    """
    following = readers.get(product.output[0], [])
    nodes = [*following, *(node for each in following for node in readers.get(each.output[0], []))]
    added = [name for node in nodes if node.op_type == "Add" for name in node.input]
    yield from (f"{name.removesuffix('.bias')}.weight" for name in (*product.input[6:], *added) if ".bias" in name)
    if any(node.op_type == "LogSoftmax" for node in nodes):
        yield "output.weight"


def specification(model: Transformer, tokens: list[str]) -> TransformerSpec:
    """Make a CTranslate2 model; ``optimize`` and ``save`` follow.

    Args:
        model: model with ReLU, one vocabulary, and equal heads in encoder and decoder.
        tokens: vocabulary; tokens 1, 2 and 3 are unknown, start and end.
    """
    sizes = model.sizes
    spec = TransformerSpec.from_config(
        (sizes.encoder_layers, sizes.decoder_layers), sizes.heads, pre_norm=sizes.norm == "pre"
    )
    for side, embedding, positions in (
        (spec.encoder, model.source_embedding, model.source_positions),
        (spec.decoder, model.target_embedding, model.target_positions),
    ):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(embedding.weight)
        side.scale_embeddings = model.embedding_scale
        side.position_encodings.encodings = _array(positions.table)
    _set_layers(spec.encoder, spec.decoder, model)
    _set_linear(spec.decoder.projection, model.output)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    _, spec.config.unk_token, spec.config.bos_token, spec.config.eos_token, *_ = tokens
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.layer_norm_epsilon = nn.LayerNorm(1).eps
    return spec


def _set_layers(encoder: TransformerEncoderSpec, decoder: TransformerDecoderSpec, model: Transformer) -> None:
    for spec, encodes in zip(encoder.layer, cast("Iterable[EncoderLayer]", model.encoder), strict=True):
        _set_attention(spec.self_attention, encodes.self_attention, encodes.self_attention_residual)
        _set_feed_forward(spec.ffn, encodes.feed_forward, encodes.feed_forward_residual)
    for spec, decodes in zip(decoder.layer, cast("Iterable[DecoderLayer]", model.decoder), strict=True):
        _set_attention(spec.self_attention, decodes.self_attention, decodes.self_attention_residual)
        _set_attention(spec.attention, decodes.cross_attention, decodes.cross_attention_residual)
        _set_feed_forward(spec.ffn, decodes.feed_forward, decodes.feed_forward_residual)
    if model.sizes.norm == "pre":
        _set_norm(encoder.layer_norm, model.encoder_norm)
        _set_norm(decoder.layer_norm, model.decoder_norm)


def _set_attention(spec: MultiHeadAttentionSpec, attention: MultiHeadAttention, residual: Residual) -> None:
    """Self-attention projects queries, keys and values at once, cross-attention keys and values."""
    projections = [attention.query_projection, attention.key_projection, attention.value_projection]
    parts = [LinearSpec() for _ in projections]
    for part, projection in zip(parts, projections, strict=True):
        _set_linear(part, projection)
    *fused, output = spec.linear
    groups = [parts] if len(fused) == 1 else [parts[:1], parts[1:]]
    for into, group in zip(fused, groups, strict=True):
        fuse_linear(into, group)
    _set_linear(output, attention.output_projection)
    _set_norm(spec.layer_norm, residual.norm)


def _set_feed_forward(spec: FeedForwardSpec, feed_forward: nn.Module, residual: Residual) -> None:
    enter, leave = (part for part in feed_forward.modules() if isinstance(part, nn.Linear))
    _set_linear(spec.linear_0, enter)
    _set_linear(spec.linear_1, leave)
    _set_norm(spec.layer_norm, residual.norm)


def _set_linear(spec: LinearSpec, linear: nn.Linear) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _set_norm(spec: LayerNormSpec, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.detach().numpy().copy()
