"""Small random Transformers in Marian's names, for files that other engines read too."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
