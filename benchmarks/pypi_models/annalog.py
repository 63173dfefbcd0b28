"""annalog: molecules to similar molecules (SMILES), a Transformer over their symbols."""

import json
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.pypi_models.package import Answer, Mapped, Package
from benchmarks.pypi_models.transformers import ATTENTION, post_norm
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.tokenizer_json import TokenizerJson

SPECIAL = ["<unk>", "<pad>", "<sos>", "<eos>"]
SYMBOL = r"\[[^\]]*\]|%\d{2}|Br|Cl|."
HEADS = 8
NAMES = {
    ".layers": "",
    "encoder.tok_embedding": "source_embedding",
    "decoder.tok_embedding": "target_embedding",
    "decoder.fc_out": "output",
    "self_attn_layer_norm": "self_attention_residual.norm",
    "enc_attn_layer_norm": "cross_attention_residual.norm",
    "ff_layer_norm": "feed_forward_residual.norm",
    "encoder_attention": "cross_attention",
    "positionwise_feedforward.fc_1": "feed_forward.0",
    "positionwise_feedforward.fc_2": "feed_forward.3",
    "fc_o": "output_projection",
    **dict(zip(("fc_q", "fc_k", "fc_v"), ATTENTION, strict=True)),
}


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    files = folder / "annalog" / "ckpt_and_vocab"
    weights = torch.load(files / "Lev_extended.pt", map_location="cpu", weights_only=True)
    symbols = import_module("annalog.model_handler")._load_nott_vocab(files / "stereo_experiment_vocab_ttf.pkl")[0]
    feed_forward = len(weights["encoder.layers.0.positionwise_feedforward.fc_1.weight"])
    tables = tuple(weights[f"{side}.pos_embedding.weight"] for side in ("encoder", "decoder"))
    model = post_norm((len(symbols), len(symbols)), feed_forward, tables, heads=HEADS, layers=3)
    ours = {}
    for name, value in weights.items():
        for theirs, part in NAMES.items():
            name = name.replace(theirs, part)  # noqa: PLW2901
        ours[name] = value
    model.load_state_dict(model.state_dict() | {name: ours[name] for name in ours if "pos_embedding" not in name})
    pad, start, end = (symbols.index(token) for token in SPECIAL[1:])
    return Mapped(
        model=model,
        tokenizer=tokenizer(symbols),
        special_tokens=SpecialTokens(pad=pad, start=start, eos=(end,), unk=symbols.index(SPECIAL[0])),
        languages=Languages.of_pair("zxx-x-smiles", "zxx-x-smiles", prefix=(start,), suffix=(end,)),
        limits=Limits(max_source_length=len(tables[0]), max_target_length=len(tables[1]) - 1),
    )


def tokenizer(symbols: list[str]) -> TokenizerJson:
    """A tokenizer of SMILES: atoms in brackets, two-digit rings, Br, Cl, and single characters."""
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    fields = {
        "version": "1.0",
        "added_tokens": [
            {"id": vocabulary[token], "content": token, "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
            for token in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": SYMBOL}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    return TokenizerJson(json.dumps(fields).encode())


def answer(folder: Path) -> Answer:
    """The package's own generator, with a beam of one."""
    package, files = import_module("annalog"), folder / "annalog" / "ckpt_and_vocab"
    vocabulary = files / "stereo_experiment_vocab_ttf.pkl"
    handler = package.SMILESModelHandler(vocabulary, vocabulary, files / "Lev_extended.pt", device="cpu")
    generator = package.SMILESGenerator(handler)

    def generate(text: str) -> str:
        found = generator.generate_smiles(text, generation_number=1, generation_method="beam")
        return str(found[0][0]) if found else ""

    return generate


PACKAGE = Package(
    requirement="annalog==1.0.6",
    needs=("rdkit", "partialsmiles"),
    kind="Transformer, 3 + 3 of width 256",
    mapped=mapped,
    answer=answer,
)
