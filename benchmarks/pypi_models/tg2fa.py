"""tg2fa-translit: Tajik to Persian letters, an nn.Transformer over characters."""

from importlib import import_module
from pathlib import Path

import torch

from benchmarks.pypi_models.package import Answer, Mapped, Package
from benchmarks.pypi_models.transformers import load_ends, load_pytorch, post_norm
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

UNKNOWN, PAD, START, END = range(4)
HEADS = 8
LONGEST = 64


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    weights = torch.load(folder / "tg2fa_translit" / "model_2.9.zip", map_location="cpu")["model_state_dict"]
    letters = import_module("tg2fa_translit.decode")
    inside = {name.partition(".")[2]: value for name, value in weights.items() if name.startswith("transformer.")}
    feed_forward = len(inside["encoder.layers.0.linear1.weight"])
    table = weights["positional_encoding.pos_embedding"][:LONGEST, 0]
    model = post_norm(
        (len(letters.tg_keys), len(letters.fa_values)), feed_forward, (table, table), heads=HEADS, layers=3
    )
    load_pytorch(model, inside)
    ends = ("src_tok_emb.embedding.weight", "tgt_tok_emb.embedding.weight", "generator.weight", "generator.bias")
    load_ends(model, *(weights[name] for name in ends))
    unknown, *special = letters.special_symbols
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer(
            "character", letters.tg_keys, letters.fa_values, unknown=unknown, special_tokens=special
        ),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN),
        languages=Languages.of_pair("tg", "fa", prefix=(START,), suffix=(END,)),
        limits=Limits(max_source_length=LONGEST, max_target_length=LONGEST),
    )


def answer(folder: Path) -> Answer:
    """The package's own function."""
    own: Answer = import_module("tg2fa_translit").convert
    return own


PACKAGE = Package(
    requirement="tg2fa-translit==1.0", kind="Transformer, 3 + 3 of width 64", mapped=mapped, answer=answer
)
