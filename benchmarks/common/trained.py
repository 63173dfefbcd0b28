"""The repository's model in PyTorch and CTranslate2, with the weights of its int8 bundle."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from ctranslate2.converters.opennmt_py import set_transformer_spec
from ctranslate2.specs import TransformerSpec
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from jumok_export.models.attention import unscale_queries
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


RENAMED = {
    r"^encoder\.(?=\d)": "encoder.transformer.",
    r"^decoder\.(?=\d)": "decoder.transformer_layers.",
    r"^(encoder|decoder)_norm": r"\1.layer_norm",
    r"^source_embedding": "encoder.embeddings.make_embedding.emb_luts.0",
    r"^target_embedding": "decoder.embeddings.make_embedding.emb_luts.0",
    r"^output": "generator",
    r"(?<=^encoder)(.*)\.self_attention_residual\.norm": r"\1.layer_norm",
    r"(?<=^decoder)(.*)\.self_attention_residual\.norm": r"\1.layer_norm_1",
    r"cross_attention_residual\.norm": "layer_norm_2",
    r"feed_forward_residual\.norm": "feed_forward.layer_norm",
    r"feed_forward\.0": "feed_forward.w_1",
    r"feed_forward\.3": "feed_forward.w_2",
    r"self_attention": "self_attn",
    r"cross_attention": "context_attn",
    r"query_projection": "linear_query",
    r"(key|value)_projection": r"linear_\1s",
    r"output_projection": "final_linear",
}
"""Patterns of this project's names of weights, and OpenNMT-py's names, which CTranslate2 reads."""


def specification(model: Transformer, tokens: list[str]) -> TransformerSpec:
    """Make a CTranslate2 model; ``optimize`` and ``save`` follow.

    Args:
        model: pre-norm model with ReLU, one vocabulary, and equal heads in encoder and decoder.
        tokens: vocabulary; tokens 1, 2 and 3 are unknown, start and end.
    """
    sizes = model.sizes
    spec = TransformerSpec.from_config((sizes.encoder_layers, sizes.decoder_layers), sizes.heads)
    weights: dict[str, NDArray[np.float32]] = {}
    for ours, parameter in model.named_parameters(remove_duplicate=False):
        name = ours
        for pattern, theirs in RENAMED.items():
            name = re.sub(pattern, theirs, name)
        weights[name] = parameter.detach().numpy().copy()
    for side, positions in (("encoder", model.source_positions), ("decoder", model.target_positions)):
        weights[f"{side}.embeddings.make_embedding.pe.pe"] = positions.table.detach().numpy().copy()
    set_transformer_spec(spec, weights)
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = model.embedding_scale
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    _, spec.config.unk_token, spec.config.bos_token, spec.config.eos_token, *_ = tokens
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.layer_norm_epsilon = nn.LayerNorm(1).eps
    return spec
