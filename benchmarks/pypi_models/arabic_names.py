"""arabic-name-romanizer: Arabic names to Latin letters, a GRU with attention that is shipped as ONNX graphs."""

import json
from importlib import import_module
from pathlib import Path

import onnx
import torch
from onnx.numpy_helper import to_array
from torch import nn

from benchmarks.pypi_models.package import Answer, Mapped, Package, below, fill
from jumok_export.models.foreign_cells import load_onnx, load_pytorch
from jumok_export.models.recurrent import Recurrent, RecurrentSizes, make_recurrent
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

PAD, START, END, UNKNOWN = range(4)
LONGEST = 32
RESOURCES = Path("arabic_name_romanizer", "resources")


def model_of(folder: Path) -> Recurrent:
    """Map the package's weights."""
    files = folder / RESOURCES
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


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    characters = json.loads((folder / RESOURCES / "vocab.json").read_text(encoding="utf-8"))["tokens"]
    others = [token for token in characters if len(token) > 1]
    roles = tuple(characters.index(token) for token in ("<UNK_COUNTRY>", "<ROLE_UNKNOWN>"))
    return Mapped(
        model=model_of(folder),
        tokenizer=WordListTokenizer("character", characters, unknown=characters[UNKNOWN], special_tokens=others),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN, suppress=(PAD,)),
        languages=Languages.of_pair("ar", "ar-Latn", prefix=roles, suffix=(END,)),
        limits=Limits(max_source_length=40, max_target_length=LONGEST),
        generation=GenerationDefaults(max_length=LONGEST, begin_suppress_tokens=(END,)),
    )


def answer(folder: Path) -> Answer:
    """The package's own model for names that its dictionary lacks, with a beam of one.

    One name at a time: the package's encoder reads the padding of a batch.
    """
    package = import_module("arabic_name_romanizer.inference")
    model = package.OnnxModel(folder / RESOURCES, beam_width=1)
    return lambda text: str(model.transliterate_units([text], None, 1)[0][0][0])


PACKAGE = Package(
    requirement="arabic-name-romanizer==0.2.0",
    kind="GRU of two layers with attention",
    mapped=mapped,
    answer=answer,
)
