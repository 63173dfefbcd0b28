"""Export trained models of PyPI packages, and compare them with the packages' own output.

Each package is installed without its dependencies into a folder of its own. Its weights are mapped onto this project's
models, exported and verified. The bundle then translates made-up texts.
"""

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import onnx
import torch
from onnx.numpy_helper import to_array
from torch import Tensor, nn

from benchmarks.common.data import ROOT
from benchmarks.common.progress import progress
from benchmarks.common.ratios import aligned
from jumok_export.bundles.export import export_bundle
from jumok_export.models.foreign_cells import load_onnx, load_pytorch
from jumok_export.models.positions import Positions
from jumok_export.models.recurrent import Recurrent, RecurrentSizes, make_recurrent
from jumok_export.models.seq2seq import Tensors, length_mask
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_serve import Translator
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

FOLDER = ROOT / "build" / "real-models"
ARABIC = Path("arabic_name_romanizer", "resources")
PERSIAN_LENGTH = 30
"""Tokens that the encoder reads of each word, padding included."""
PROJECTIONS = ("query_projection", "key_projection", "value_projection")
NORMS = {
    "encoder": ("self_attention_residual", "feed_forward_residual"),
    "decoder": ("self_attention_residual", "cross_attention_residual", "feed_forward_residual"),
}
SEED = 11
CALIBRATION_TEXTS = 200
"""Other texts than those that are compared."""

Answer = Callable[[str], str]
"""Returns the package's own output for a text."""
Mapped = dict[str, Any]
"""Arguments of `export_bundle`."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of PyPI that ships a trained model.

    Attributes:
        requirement: name and version.
        kind: the model, for the table.
        mapped: maps the weights of the package in a folder onto this project's models.
        answer: loads the package from a folder, in a process of its own.
    """

    requirement: str
    kind: str
    mapped: Callable[[Path], Mapped]
    answer: Callable[[Path], Answer]

    def install(self, folder: Path) -> Path:
        """Install the package without its dependencies into a folder of its own, once."""
        target = folder / self.requirement
        if not target.exists():
            part = target.with_name("part")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*command, "--upgrade", "--target", str(part), self.requirement], check=True)
            part.rename(target)
        return target


def made_texts(name: str, number: int) -> list[str]:
    """Draw different texts for a package, always the same."""
    parts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[name]
    random, drawn = Random(SEED), dict[str, None]()
    while len(drawn) < number:
        chosen = (random.choice(column.split()) for column in parts["columns"])
        drawn[parts.get("between", "").join(part for part in chosen if part != "-")] = None
    return list(drawn)


def below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the weights whose names begin with a prefix, which is left out."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def fill(model: nn.Module, part: str, weights: Mapping[str, Tensor], prefix: str = "") -> None:
    """Load weights, or those below a prefix, into a part of a model; all of its parameters must be there."""
    model.get_submodule(part).load_state_dict(below(weights, prefix))


class ReadsPadding(Recurrent):
    """A recurrent model whose encoder and attention also read the padding after a source.

    Args:
        length: tokens of every source, padding included.
        pad: the padding token.
    """

    def __init__(self, sizes: RecurrentSizes, *, length: int, pad: int) -> None:
        super().__init__(sizes)
        self.length = length
        self.pad = pad

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """See `Recurrent`; the memory is [B, length, encoder_width]."""
        own = torch.where(length_mask(source_lengths, source_ids.shape[1]), source_ids, self.pad)
        padding = source_ids.new_full((source_ids.shape[0], self.length), self.pad)
        padded = torch.cat((own, padding), dim=1).narrow(1, 0, self.length)
        return super().encode(padded, torch.full_like(source_lengths, self.length))

    def advance(
        self, token_ids: Tensor, source_mask: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensor | None, Tensors]:
        """See `Recurrent`; attends to the padding too."""
        mask = source_mask.new_ones(1, 1, self.length)
        return super().advance(token_ids, mask, memory, state)


def load_transformer(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of `nn.Transformer` into a post-norm model.

    Args:
        weights: state dict of PyTorch's module, with names such as `encoder.layers.0.self_attn.in_proj_weight`.
    """
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
                for projection, share in zip(PROJECTIONS, value.chunk(3), strict=True):
                    ours[f"{prefix}.{projection}.{kind.removeprefix('in_proj_')}"] = share
        elif part.startswith("linear"):
            ours[f"{prefix}feed_forward.{0 if part == 'linear1' else 3}.{kind}"] = value
        else:
            ours[f"{prefix}{NORMS[side][int(part.removeprefix('norm')) - 1]}.norm.{kind}"] = value
    for side in ("encoder", "decoder"):
        setattr(model, f"{side}_norm", nn.LayerNorm(model.sizes.width))
    missing, unexpected = model.load_state_dict(ours, strict=False)
    left = [name for name in missing if name.startswith(("encoder", "decoder"))]
    if left or unexpected:
        raise ValueError(f"weights of nn.Transformer do not fit: missing {left}, unexpected {unexpected}")


def arabic_model(folder: Path) -> Recurrent:
    """Map the package's weights."""
    files = folder / ARABIC
    encoder, decoder = (onnx.load(files / f"{side}.onnx").graph for side in ("encoder", "decoder"))
    tensors = [*encoder.initializer, *decoder.initializer]
    weights = {each.name.removeprefix("m."): torch.from_numpy(to_array(each).copy()) for each in tensors}
    size, width = weights["emb.weight"].shape
    sizes = RecurrentSizes(
        source_vocabulary=size, target_vocabulary=size, cell="gru", embedding=width, width=width, layers=2,
        first_state="mean",
    )  # fmt: skip
    model = make_recurrent(sizes)
    grus = [node for node in encoder.node if node.op_type == "GRU"]
    for layer, node in zip(model.encoder.layers, grus, strict=True):
        load_onnx(layer.children(), *(weights[name] for name in node.input[1:4]))
    load_pytorch(model.decoder, below(weights, "decoder."))
    products = [node.input[1] for node in decoder.node if node.op_type == "MatMul" and node.input[1] in weights]
    query, combine = (weights[name] for name in products)
    fill(model, "attention.key_projection", {"weight": query})
    model.attentional = nn.Linear(2 * width, width)  # the project's own has no bias
    fill(model, "attentional", {"weight": combine.T.roll(width, 1), "bias": weights["combine.bias"]})
    parts = {"bridges.mean": "bridge.", "output": "out.", "source_embedding": "emb.", "target_embedding": "emb."}
    for part, prefix in parts.items():
        fill(model, part, weights, prefix)
    return model


def map_arabic(folder: Path) -> Mapped:
    """Map the package's model."""
    pad, start, end, unknown = range(4)
    characters = json.loads((folder / ARABIC / "vocab.json").read_text(encoding="utf-8"))["tokens"]
    others = [token for token in characters if len(token) > 1]
    roles = tuple(characters.index(token) for token in ("<UNK_COUNTRY>", "<ROLE_UNKNOWN>"))
    return Mapped(
        model=arabic_model(folder),
        tokenizer=WordListTokenizer("character", characters, unknown=characters[unknown], special_tokens=others),
        special_tokens=SpecialTokens(pad=pad, start=start, eos=(end,), unk=unknown, suppress=(pad,)),
        languages=Languages.of_pair("ar", "ar-Latn", prefix=roles, suffix=(end,)),
        limits=Limits(max_source_length=40, max_target_length=32),
        generation=GenerationDefaults(max_length=32, begin_suppress_tokens=(end,)),
    )


def answer_arabic(folder: Path) -> Answer:
    """The package's own model for names that its dictionary lacks, with a beam of one.

    One name at a time: the package's encoder reads the padding of a batch.
    """
    package = import_module("arabic_name_romanizer.inference")
    model = package.OnnxModel(folder / ARABIC, beam_width=1)
    return lambda text: str(model.transliterate_units([text], None, 1)[0][0][0])


def map_persian(folder: Path) -> Mapped:
    """Map the package's model."""
    pad, start, end = range(3)
    special = ["<pad>", "<s>", "</s>"]
    letters_of = import_module("g2p_fa.utils")
    weights = torch.load(folder / "g2p_fa" / "data" / "weights", map_location="cpu", weights_only=True)
    (letters, embedding), (phonemes, width) = (
        weights[f"{name}.weight"].shape for name in ("encoder.embedding", "decoder.fc_out")
    )
    sizes = RecurrentSizes(
        source_vocabulary=letters, target_vocabulary=phonemes, cell="lstm", attention="none",
        embedding=embedding, width=width, layers=2, bidirectional=False,
    )  # fmt: skip
    model = ReadsPadding(sizes, length=PERSIAN_LENGTH, pad=pad)
    for side, layers in (("encoder", model.encoder.layers), ("decoder", model.decoder)):
        load_pytorch(layers, below(weights, f"{side}.rnn."))
    fill(model, "source_embedding", weights, "encoder.embedding.")
    fill(model, "target_embedding", weights, "decoder.embedding.")
    fill(model, "output", weights, "decoder.fc_out.")
    lists = ([*special, *spelled, *(f"<{number}>" for number in range(len(spelled) + 3, size))]
             for spelled, size in ((letters_of.FA_LETTERS, letters), (letters_of.IPA_LETTERS, phonemes)))  # fmt: skip
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer("character", *lists, special_tokens=special),
        special_tokens=SpecialTokens(pad=pad, start=start, eos=(end,)),
        languages=Languages.of_pair("fa", "fa-fonipa", prefix=(start,), suffix=(end,)),
        limits=Limits(max_source_length=PERSIAN_LENGTH, max_target_length=PERSIAN_LENGTH - 1),
    )


def answer_persian(folder: Path) -> Answer:
    """The package's own call, on the CPU and without dropout."""
    package = import_module("g2p_fa").G2P_Fa(checkpoint=None)
    package.model.load_state_dict(torch.load(folder / "g2p_fa" / "data" / "weights", map_location="cpu"))
    package.model.eval()
    own: Answer = package
    return own


def map_tajik(folder: Path) -> Mapped:
    """Map the package's model, PyTorch's `nn.Transformer`."""
    weights = torch.load(folder / "tg2fa_translit" / "model_2.9.zip", map_location="cpu")["model_state_dict"]
    letters = import_module("tg2fa_translit.decode")
    table = weights["positional_encoding.pos_embedding"][:64, 0]
    sizes = TransformerSizes(
        source_vocabulary=len(letters.tg_keys), target_vocabulary=len(letters.fa_values), width=table.shape[1],
        heads=8, feed_forward=len(weights["transformer.encoder.layers.0.linear1.weight"]), encoder_layers=3,
        decoder_layers=3, norm="post", share_embeddings=False, tie_output=False, output_bias=True,
        max_positions=len(table),
    )  # fmt: skip
    model = Transformer(sizes, source_positions=Positions(table), target_positions=Positions(table))
    load_transformer(model, below(weights, "transformer."))
    fill(model, "output", weights, "generator.")
    for part, theirs in (("source_embedding", "src"), ("target_embedding", "tgt")):
        fill(model, part, weights, f"{theirs}_tok_emb.embedding.")
    unknown, pad, start, end = range(4)
    unknown_symbol, *special = letters.special_symbols
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer(
            "character", letters.tg_keys, letters.fa_values, unknown=unknown_symbol, special_tokens=special
        ),
        special_tokens=SpecialTokens(pad=pad, start=start, eos=(end,), unk=unknown),
        languages=Languages.of_pair("tg", "fa", prefix=(start,), suffix=(end,)),
        limits=Limits(max_source_length=len(table), max_target_length=len(table)),
    )


def answer_tajik(folder: Path) -> Answer:
    """The package's own function."""
    own: Answer = import_module("tg2fa_translit").convert
    return own


PACKAGES = {
    package.requirement.partition("==")[0]: package
    for package in (
        Package(requirement="g2p-fa==1.1.0", kind="LSTM of two layers", mapped=map_persian, answer=answer_persian),
        Package(
            requirement="arabic-name-romanizer==0.2.0",
            kind="GRU of two layers with attention",
            mapped=map_arabic,
            answer=answer_arabic,
        ),
        Package(
            requirement="tg2fa-translit==1.0",
            kind="Transformer, 3 + 3 of width 64",
            mapped=map_tajik,
            answer=answer_tajik,
        ),
    )
}
"""Packages by name."""


def answers(name: str, folder: Path, texts: Sequence[str]) -> list[str]:
    """Return the package's own outputs, from a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.studies.real_models", "--answer", str(folder)]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--packages", name],
        env=alone,
        input=json.dumps(texts),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, folder: Path, inputs: int) -> list[str]:
    """Install, export and compare one package's model; returns a row of the table."""
    package = PACKAGES[name]
    source = package.install(folder)
    texts = made_texts(name, inputs + CALIBRATION_TEXTS)
    compared = texts[:inputs]
    progress(f"{name}: asking the package")
    expected = answers(name, source, compared)
    sys.path.append(str(source))  # after everything that is installed
    mapped = package.mapped(source)
    sys.path.remove(str(source))
    progress(f"{name}: exporting and verifying")
    out = folder / "bundles" / name
    bundle = export_bundle(**mapped, out=out, name=name, calibration=texts[inputs:], overwrite=True, progress=progress)
    equal = []
    for precision in ("fp32", "int8"):
        with Translator(bundle.path, precision=precision, threads=1) as translator:
            found = [translation.text for translation in translator.translate(compared)]
        equal.append(sum(ours == theirs for ours, theirs in zip(found, expected, strict=True)))
    manifest = bundle.manifest
    share = manifest.agreement["int8"].share
    return [
        *(name, package.kind, f"{manifest.architecture.parameters:,}", f"{inputs}"),
        *(*map(str, equal), f"{100 * share:.1f} %"),
    ]


def main() -> int:
    """Run the comparison; returns 1 if a model's output differs in fp32."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES), help="packages to compare")
    parser.add_argument("--inputs", type=int, default=200, help="texts of each model; default: %(default)s")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of packages and bundles")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        [name] = arguments.packages
        sys.path.append(str(arguments.answer))
        answer = PACKAGES[name].answer(arguments.answer)
        print("\n" + json.dumps([answer(text) for text in json.load(sys.stdin)]))
        return 0
    torch.set_num_threads(1)  # faster than more for models of this size
    rows = [compare(name, arguments.folder, arguments.inputs) for name in arguments.packages]
    print(aligned([["package", "model", "weights", "inputs", "fp32", "int8", "agreement"], *rows]))
    return int(any(row[3] != row[4] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
