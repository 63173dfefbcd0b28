"""lemmaturk: Turkish words to their lemmas, an nn.Transformer over characters."""

import json
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.pypi_models.package import Answer, Mapped, Package
from benchmarks.pypi_models.transformers import load_ends, load_pytorch, post_norm
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

PAD, UNKNOWN, START, END = range(4)
HEADS = 8
LONGEST = 64


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    files = folder / "lemmaturk" / "weights"
    characters = list(json.loads((files / "vocab.json").read_text(encoding="utf-8")))
    weights = torch.load(files / "best_transformer.pth", map_location="cpu", weights_only=True)
    inside = {name.partition(".")[2]: value for name, value in weights.items() if name.startswith("transformer.")}
    feed_forward = len(inside["encoder.layers.0.linear1.weight"])
    table = weights["positional_encoding.pe"][0, :LONGEST]
    model = post_norm((len(characters), len(characters)), feed_forward, (table, table), heads=HEADS, layers=3)
    load_pytorch(model, inside)
    ends = ("src_tok_emb.embedding.weight", "trg_tok_emb.embedding.weight", "generator.weight", "generator.bias")
    load_ends(model, *(weights[name] for name in ends))
    special = [characters[token] for token in (PAD, START, END)]
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer("character", characters, unknown=characters[UNKNOWN], special_tokens=special),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN),
        languages=Languages.of_pair("tr", "tr", suffix=(END,)),
        limits=Limits(max_source_length=LONGEST, max_target_length=LONGEST),
    )


def answer(folder: Path) -> Answer:
    """The package's own method."""
    own: Answer = import_module("lemmaturk.inference").Lemmatizer(device="cpu").lemmatize
    return own


PACKAGE = Package(requirement="lemmaturk==0.1.0", kind="Transformer, 3 + 3 of width 256", mapped=mapped, answer=answer)
