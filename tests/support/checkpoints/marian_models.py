"""Small Transformers in Marian's names, random or trained, for files that other engines read too."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.positions import Positions, fairseq_positions
from jumok_export.models.ssru import SSRULayer, SSRUTransformer
from jumok_export.models.transformer import TransformerSizes

Arrays = dict[str, NDArray[np.float32]]

SIZES: Mapping[str, Any] = {"width": 32, "heads": 4, "feed_forward": 64, "encoder_layers": 2, "decoder_layers": 2}


def settings(vocabularies: tuple[int, int], **changes: Any) -> dict[str, Any]:
    """The options of a model of `parameters`, as Marian's trainer writes them."""
    return {
        "type": "transformer",
        "dim-emb": SIZES["width"],
        "dim-vocabs": list(vocabularies),
        "enc-depth": SIZES["encoder_layers"],
        "dec-depth": SIZES["decoder_layers"],
        "enc-type": "bidirectional",
        "enc-cell": "gru",
        "dec-cell": "ssru",
        "dec-cell-base-depth": 2,
        "dec-cell-high-depth": 1,
        "enc-cell-depth": 1,
        "dim-rnn": 1024,
        "skip": False,
        "layer-normalization": False,
        "right-left": False,
        "input-types": [],
        "max-length": 100,
        "tied-embeddings": False,
        "tied-embeddings-src": False,
        "tied-embeddings-all": True,
        "output-omit-bias": False,
        "lemma-dim-emb": 0,
        "ulr": False,
        "ulr-dim-emb": 0,
        "ulr-trainable-transformation": False,
        "transformer-heads": SIZES["heads"],
        "transformer-dim-ffn": SIZES["feed_forward"],
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": "relu",
        "transformer-dim-aan": 2048,
        "transformer-aan-depth": 2,
        "transformer-aan-activation": "swish",
        "transformer-aan-nogate": False,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-no-projection": False,
        "transformer-pool": False,
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "",
        "transformer-tied-layers": [],
        "transformer-train-positions": False,
        "transformer-guided-alignment-layer": "last",
        "guided-alignment": "none",
        "bert-train-type-embeddings": True,
        "bert-type-vocab-size": 2,
        "version": "v1.9.56 2021-07-01",
        **changes,
    }


def parameters(vocabularies: tuple[int, int], options: Mapping[str, Any], *, seed: int = 1) -> Arrays:
    """Random parameters of a model with the options of `settings`, in Marian's names and orientation."""
    random = np.random.default_rng(seed)
    width, hidden = options["dim-emb"], options["transformer-dim-ffn"]
    arrays: Arrays = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        bound = scale * (6 / (rows + columns)) ** 0.5
        arrays[name] = random.uniform(-bound, bound, (rows, columns)).astype(np.float32)

    def vector(name: str, size: int, centre: float = 0.0) -> None:
        arrays[name] = (centre + 0.1 * random.standard_normal((1, size))).astype(np.float32)

    def norm(name: str, suffix: str = "") -> None:
        vector(f"{name}_ln_scale{suffix}", width, 1.0)
        vector(f"{name}_ln_bias{suffix}", width)

    before = "_pre" if "n" in options["transformer-preprocess"] else ""

    def attention(name: str) -> None:
        for letter in "qkvo":
            matrix(f"{name}_W{letter}", width, width, 2.0)
            vector(f"{name}_b{letter}", width)
        norm(f"{name}_Wo", before)

    def feed_forward(name: str) -> None:
        matrix(f"{name}_W1", width, hidden, 2.0)
        vector(f"{name}_b1", hidden)
        matrix(f"{name}_W2", hidden, width, 2.0)
        vector(f"{name}_b2", width)
        norm(f"{name}_ffn", before)

    def embedding(name: str, rows: int) -> None:
        arrays[name] = (random.standard_normal((rows, width)) * width**-0.5).astype(np.float32)

    if options["tied-embeddings-all"]:
        embedding("Wemb", vocabularies[0])
    else:
        embedding("encoder_Wemb", vocabularies[0])
        embedding("decoder_Wemb", vocabularies[1])
        if not options["tied-embeddings"]:
            matrix("decoder_ff_logit_out_W", width, vocabularies[1], 4.0)
    vector("decoder_ff_logit_out_b", vocabularies[1])
    if options["transformer-train-positions"]:
        embedding("Wpos", options["max-length"])
    for side in ("encoder", "decoder"):
        if "n" in options["transformer-postprocess-top"]:
            norm(f"{side}_top")
        if "n" in options["transformer-postprocess-emb"]:
            norm(f"{side}_emb", "_pre")
    for layer in range(1, options["enc-depth"] + 1):
        attention(f"encoder_l{layer}_self")
        feed_forward(f"encoder_l{layer}_ffn")
    for layer in range(1, options["dec-depth"] + 1):
        if options["transformer-decoder-autoreg"] == "rnn":
            matrix(f"decoder_l{layer}_rnn_W", width, width, 2.0)
            matrix(f"decoder_l{layer}_rnn_Wf", width, width, 2.0)
            vector(f"decoder_l{layer}_rnn_bf", width)
            norm(f"decoder_l{layer}_rnn{'' if before else '_ffn'}", before)
        else:
            attention(f"decoder_l{layer}_self")
        attention(f"decoder_l{layer}_context")
        feed_forward(f"decoder_l{layer}_ffn")
    return arrays


class Student(SSRUTransformer):
    """A model that learns with Marian's positions and its start, an embedding of zeros."""

    def __init__(self, vocabulary: int, sizes: Mapping[str, Any] = SIZES, *, dropout: float = 0.0) -> None:
        positions = Positions(fairseq_positions(128, sizes["width"]))
        described = TransformerSizes(
            source_vocabulary=vocabulary,
            target_vocabulary=vocabulary,
            norm="post",
            output_bias=True,
            dropout=dropout,
            **sizes,
        )
        super().__init__(described, source_positions=positions, target_positions=positions)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6

    def embed_target(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """See `CrossAttending`."""
        embedded = self.target_embedding(token_ids) * self.embedding_scale * (positions > 0)[..., None]
        entered: Tensor = embedded + self.target_positions.of_tokens(token_ids, positions)
        return entered


def train_student(vocabulary: int, pairs: Sequence[tuple[list[int], list[int]]], updates: int) -> Student:
    """Train a student on pairs of token ids that end with id 0."""
    source_ids, source_lengths = padded([source for source, _ in pairs])
    target_ids, target_lengths = padded([target for _, target in pairs])
    within = torch.arange(target_ids.shape[1]) < target_lengths[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = Student(vocabulary)
        optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
        for _ in range(updates):
            logits = model(source_ids, source_lengths, torch.zeros_like(source_lengths), target_ids)
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(logits[within], target_ids[within]))
            optimizer.step()
    return model


def padded(sequences: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids [B, longest], padded with id 0, and their lengths [B]."""
    longest = max(map(len, sequences))
    return (
        torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]),
        torch.tensor([len(sequence) for sequence in sequences]),
    )


def arrays_of(model: SSRUTransformer) -> Arrays:
    """The parameters of a model with norms after its layers and one embedding, in Marian's names and orientation."""
    arrays: dict[str, Tensor] = {
        "Wemb": model.target_embedding.weight,
        "decoder_ff_logit_out_b": model.output.bias[None],
    }
    for name, linear in linear_layers(model).items():
        arrays[name] = linear.weight.T
        if linear.bias is not None:
            arrays[bias_of(name)] = linear.bias[None]
    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(layers, start=1):
            for part, theirs in NORMS.items():
                residual = getattr(layer, f"{part}_residual", None)
                if residual is not None:
                    name = f"{side}_l{number}_{theirs}_ln"
                    arrays[f"{name}_scale"] = residual.norm.weight[None]
                    arrays[f"{name}_bias"] = residual.norm.bias[None]
    return {name: values.detach().numpy().copy() for name, values in arrays.items()}


NORMS = {"self_attention": "self_Wo", "ssru": "rnn_ffn", "cross_attention": "context_Wo", "feed_forward": "ffn_ffn"}
"""Marian's names of the norms after the parts of a layer."""


def bias_of(matrix: str) -> str:
    """Name of the bias that is added after a matrix."""
    layer, _, letter = matrix.rpartition("_W")
    return f"{layer}_b{letter}"


def linear_layers(model: SSRUTransformer) -> dict[str, nn.Linear]:
    """Linear layers by the names of their matrices, without the output, whose matrix is the embedding."""
    found: dict[str, nn.Linear] = {}
    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(layers, start=1):
            name = f"{side}_l{number}"
            feed_forward: Any = layer.feed_forward
            for part, theirs in (("self_attention", "self"), ("cross_attention", "context")):
                attention = getattr(layer, part, None)
                for role in ("query", "key", "value", "output") if attention is not None else ():
                    found[f"{name}_{theirs}_W{role[0]}"] = getattr(attention, f"{role}_projection")
            if isinstance(layer, SSRULayer):
                found[f"{name}_rnn_W"] = layer.ssru.input_projection
                found[f"{name}_rnn_Wf"] = layer.ssru.forget_projection
            found[f"{name}_ffn_W1"], found[f"{name}_ffn_W2"] = feed_forward[0], feed_forward[3]
    return found
