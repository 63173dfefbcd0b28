"""arabic-name-romanizer: Arabic names to Latin letters, a GRU with attention that is shipped as ONNX graphs."""

import json
from importlib import import_module
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from benchmarks.pypi_models.package import Answer, Mapped, Package
from jumok_export.models.cells import Cell
from jumok_export.models.foreign_cells import load_pytorch
from jumok_export.models.recurrent import AttentiveRecurrent, RecurrentSizes
from jumok_export.models.recurrent_attention import GeneralAttention
from jumok_export.models.seq2seq import Tensors, length_mask
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

PAD, START, END, UNKNOWN = range(4)
LONGEST = 32
LAYERS = 2


class StartsFromMean(AttentiveRecurrent):
    """A model whose decoder starts from the mean of the encoder's states."""

    def __init__(self, sizes: RecurrentSizes) -> None:
        super().__init__(sizes)
        self.bridge = nn.Linear(sizes.width, sizes.width)
        self.attentional = nn.Linear(2 * sizes.width, sizes.width)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """See `Recurrent`."""
        memory, state = super().encode(source_ids, source_lengths)
        within = length_mask(source_lengths, source_ids.shape[1])[..., None]
        mean = (memory["encoded"] * within).sum(dim=1) / source_lengths[:, None]
        first = torch.tanh(self.bridge(mean))
        return memory, {name: first.clone() for name in state}


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    files = folder / "arabic_name_romanizer" / "resources"
    characters = json.loads((files / "vocab.json").read_text(encoding="utf-8"))["tokens"]
    encoder, decoder = (onnx.load(files / f"{side}.onnx") for side in ("encoder", "decoder"))
    weights = {
        tensor.name.removeprefix("m."): torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for graph in (encoder, decoder)
        for tensor in graph.graph.initializer
    }
    characters_, width = weights["emb.weight"].shape
    sizes = RecurrentSizes(
        source_vocabulary=characters_, target_vocabulary=characters_, cell="gru", attention="general",
        embedding=width, width=width, layers=LAYERS,
    )  # fmt: skip
    model = StartsFromMean(sizes)
    grus = [node for node in encoder.graph.node if node.op_type == "GRU"]
    cells = [module for module in model.encoder.modules() if isinstance(module, Cell)]  # the forward ones first
    for number, cell in enumerate(cells):  # ONNX has our order of gates
        node, direction = grus[number // 2], number % 2
        bias_input, bias_hidden = weights[node.input[3]][direction].chunk(2)
        cell.input_projection.load_state_dict({"weight": weights[node.input[1]][direction], "bias": bias_input})
        cell.hidden_projection.load_state_dict({"weight": weights[node.input[2]][direction], "bias": bias_hidden})
    load_pytorch(model.decoder, {name[8:]: weights[name] for name in weights if name.startswith("decoder.")})
    query, combine = (
        weights[node.input[1]] for node in decoder.graph.node if node.op_type == "MatMul" and node.input[1] in weights
    )
    assert isinstance(model.attention, GeneralAttention)
    model.attention.key_projection.weight.data = query
    assert model.attentional is not None
    model.attentional.load_state_dict({"weight": combine.T.roll(width, 1), "bias": weights["combine.bias"]})
    for part in ("bridge", "output"):
        name = part.replace("output", "out")
        getattr(model, part).load_state_dict({kind: weights[f"{name}.{kind}"] for kind in ("weight", "bias")})
    model.source_embedding.weight.data = model.target_embedding.weight.data = weights["emb.weight"]
    others = [token for token in characters if len(token) > 1]
    prefix = tuple(characters.index(token) for token in ("<UNK_COUNTRY>", "<ROLE_UNKNOWN>"))
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer("character", characters, unknown=characters[UNKNOWN], special_tokens=others),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN, suppress=(PAD,)),
        languages=Languages.of_pair("ar", "ar-Latn", prefix=prefix, suffix=(END,)),
        limits=Limits(max_source_length=40, max_target_length=LONGEST),
        generation=GenerationDefaults(max_length=LONGEST, begin_suppress_tokens=(END,)),
    )


def answer(folder: Path) -> Answer:
    """The package's own model for names that its dictionary lacks, with a beam of one.

    One name at a time: the package's encoder reads the padding of a batch.
    """
    package = import_module("arabic_name_romanizer.inference")
    model = package.OnnxModel(folder / "arabic_name_romanizer" / "resources", beam_width=1)
    return lambda text: str(model.transliterate_units([text], None, 1)[0][0][0])


PACKAGE = Package(
    requirement="arabic-name-romanizer==0.2.0",
    kind="GRU of two layers with attention",
    mapped=mapped,
    answer=answer,
)
