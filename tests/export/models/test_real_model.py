"""A trained Transformer of a PyPI package, mapped onto the project's: it answers as the package does."""

import importlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor, nn

from jumok_export.bundles.export import export_bundle
from jumok_export.models.positions import Positions
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_serve import Translator
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer
from tests.support.hang import HANG_S

PACKAGE = "tg2fa-translit==1.0"
UNKNOWN, PAD, START, END = range(4)
NORMS = {
    "encoder": ("self_attention_residual", "feed_forward_residual"),
    "decoder": ("self_attention_residual", "cross_attention_residual", "feed_forward_residual"),
}
WORDS = (
    "забони модари китоби хонаи дарёи кӯҳи осмони шаҳри дӯсти бародари мактаби шеъри устоди гули боғи нони ҷавони",
    "тоҷикӣ ман ту мо рӯдакӣ баҳор душанбе пир зебо бузург хурд сафед сиёҳ сабз",
    "дорам аст буд омад рафт мехонад дидам",
)


def below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Weights whose names begin with a prefix, which is left out."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of `nn.Transformer` with this project's names."""
    ours: dict[str, Tensor] = {}
    for name, value in weights.items():
        side, _, rest = name.partition(".")
        if rest.startswith("norm."):  # after the whole stack
            ours[f"{side}_{rest}"] = value
            continue
        _, layer, part, *inner, kind = rest.split(".")
        prefix = f"{side}.{layer}."
        if part in {"self_attn", "multihead_attn"}:
            prefix += "self_attention" if part == "self_attn" else "cross_attention"
            if inner:
                ours[f"{prefix}.output_projection.{kind}"] = value
            else:
                for projection, share in zip(("query", "key", "value"), value.chunk(3), strict=True):
                    ours[f"{prefix}.{projection}_projection.{kind.removeprefix('in_proj_')}"] = share
        elif part.startswith("linear"):
            ours[f"{prefix}feed_forward.{0 if part == 'linear1' else 3}.{kind}"] = value
        else:
            ours[f"{prefix}{NORMS[side][int(part.removeprefix('norm')) - 1]}.norm.{kind}"] = value
    return ours


def mapped(weights: Mapping[str, Tensor], source: int, target: int) -> Transformer:
    """The package's model with vocabularies of these sizes."""
    table = weights["positional_encoding.pos_embedding"][:64, 0]
    sizes = TransformerSizes(
        source_vocabulary=source, target_vocabulary=target, width=table.shape[1], heads=8,
        feed_forward=len(weights["transformer.encoder.layers.0.linear1.weight"]), encoder_layers=3, decoder_layers=3,
        norm="post", share_embeddings=False, tie_output=False, output_bias=True, max_positions=len(table),
    )  # fmt: skip
    model = Transformer(sizes, source_positions=Positions(table), target_positions=Positions(table))
    for side in ("encoder", "decoder"):
        setattr(model, f"{side}_norm", nn.LayerNorm(sizes.width))
    found = renamed(below(weights, "transformer."))
    found |= {f"output.{name}": value for name, value in below(weights, "generator.").items()}
    for part, theirs in (("source_embedding", "src"), ("target_embedding", "tgt")):
        found[f"{part}.weight"] = weights[f"{theirs}_tok_emb.embedding.weight"]
    missing, unexpected = model.load_state_dict(found, strict=False)
    assert (unexpected, [name for name in missing if "position" not in name]) == ([], [])
    return model


@pytest.mark.filterwarnings("ignore")  # the package's own
def test_a_packages_model_answers_as_the_package_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run([*install, "--target", tmp_path, PACKAGE], check=False, timeout=HANG_S).returncode:
        pytest.skip(f"pip cannot install {PACKAGE} here")
    monkeypatch.syspath_prepend(tmp_path)
    package, letters = map(importlib.import_module, ("tg2fa_translit", "tg2fa_translit.decode"))
    weights = torch.load(tmp_path / "tg2fa_translit" / "model_2.9.zip", map_location="cpu")["model_state_dict"]
    random = Random(11)
    texts = [" ".join(random.choice(column.split()) for column in WORDS[: 1 + each % 3]) for each in range(180)]
    texts = list(dict.fromkeys(texts))
    compared = texts[:60]
    unknown, *special = letters.special_symbols
    bundle = export_bundle(
        mapped(weights, len(letters.tg_keys), len(letters.fa_values)),
        WordListTokenizer("character", letters.tg_keys, letters.fa_values, unknown=unknown, special_tokens=special),
        tmp_path / "bundle",
        name="tg2fa",
        languages=Languages.of_pair("tg", "fa", prefix=(START,), suffix=(END,)),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN),
        limits=Limits(max_source_length=64, max_target_length=64),
        calibration=texts[60:],
    )
    with Translator(bundle.path, precision="fp32", threads=1) as translator:
        assert [one.text for one in translator.translate(compared)] == [package.convert(text) for text in compared]
