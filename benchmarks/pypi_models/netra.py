"""netra-transliterate: English to Khmer letters, a GRU of Keras with additive attention."""

import io
import os
import pickle
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pypi_models.fixed_length import ReadsPadding
from benchmarks.pypi_models.package import Answer, Mapped, Package
from jumok_export.models.cells import Cell
from jumok_export.models.foreign_cells import load_keras
from jumok_export.models.recurrent import RecurrentSizes
from jumok_export.models.recurrent_attention import AdditiveAttention
from jumok_export.models.recurrent_encoder import RecurrentEncoder
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

PAD = 0
LONGEST = 31
FOLDER = Path("khmer_transliterator", "weights")


class Projected(nn.Module):
    """An encoder with a projection of its states; the decoder starts from zeros."""

    def __init__(self, encoder: RecurrentEncoder, projection: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """See `RecurrentEncoder`."""
        states = self.projection(self.encoder(x, lengths)[0])
        return states, [(torch.zeros_like(states[:, 0]),)]


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    with zipfile.ZipFile(folder / FOLDER / "bi_gru_attention_khmer_transliterator.keras") as file:
        stored = import_module("h5py").File(io.BytesIO(file.read("model.weights.h5")))["layers"]

    def weights(name: str) -> list[Tensor]:
        return [torch.from_numpy(stored[name]["vars"][number][:]) for number in sorted(stored[name]["vars"])]

    (english,), (khmer,), (scale,) = map(weights, ("embedding", "embedding_1", "additive_attention"))
    dense, width = weights("time_distributed/layer"), len(scale)
    sizes = RecurrentSizes(
        source_vocabulary=len(english), target_vocabulary=len(khmer), cell="gru", attention="concat", readout="direct",
        embedding=english.shape[1], width=width, bidirectional=False,
    )  # fmt: skip
    assets = read_assets(folder)
    model = ReadsPadding(sizes, length=assets["max_eng_len"], pad=PAD)
    encoder = RecurrentEncoder("gru", sizes.embedding, 2 * width, layers=1, bidirectional=True)
    projected = Projected(encoder, filled(nn.Linear(2 * width, width), dense))
    model.encoder = projected  # type: ignore[assignment]  # it returns what the encoder would
    names = [f"bidirectional/{direction}_layer/cell" for direction in ("forward", "backward")]
    modules = (*encoder.modules(), *model.decoder.modules())
    cells = [module for module in modules if isinstance(module, Cell)]
    for cell, name in zip(cells, (*names, "gru/cell"), strict=True):
        load_keras(cell, *weights(name))
    model.source_embedding.weight.data, model.target_embedding.weight.data = english, khmer
    assert isinstance(model.attention, AdditiveAttention)
    model.attention.query_projection.weight.data = model.attention.key_projection.weight.data = torch.eye(width)
    model.attention.weight.data = scale
    kernel, bias = weights("dense")
    filled(model.output, [kernel.roll(width, 0), bias])  # here the context comes first
    lists = [["<pad>", *assets[f"{side}_tokenizer"].word_index] for side in ("eng", "khm")]
    start, end = lists[1].index("\t"), lists[1].index("\n")
    lists[1][start], lists[1][end] = "<s>", "</s>"
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer("character", *lists, unknown="<unk>", special_tokens=["<pad>", "<s>", "</s>"]),
        special_tokens=SpecialTokens(pad=PAD, start=start, eos=(end,), unk=1),
        languages=Languages.of_pair("en", "km", suffix=()),
        limits=Limits(max_source_length=assets["max_eng_len"], max_target_length=LONGEST),
        generation=GenerationDefaults(max_length=LONGEST),
    )


def filled(linear: nn.Linear, weights: list[Tensor]) -> nn.Linear:
    """Fill a layer with kernel [inputs, outputs] and bias of Keras' Dense."""
    linear.load_state_dict({"weight": weights[0].T, "bias": weights[1]})
    return linear


def read_assets(folder: Path) -> Any:
    """Read the package's tokenizers, which need Keras to be read."""
    os.environ["KERAS_BACKEND"] = "torch"
    return pickle.loads((folder / FOLDER / "gru_transliteration_assets.pkl").read_bytes())


def answer(folder: Path) -> Answer:
    """The package's own search with a beam of one, on Keras instead of TensorFlow's copy of it."""
    os.environ["KERAS_BACKEND"] = "torch"
    keras = import_module("keras")
    padding = SimpleNamespace(pad_sequences=keras.utils.pad_sequences)
    theirs = {"layers": keras.layers, "models": keras.models, "preprocessing.sequence": padding}
    sys.modules.update({f"tensorflow.keras.{name}": module for name, module in theirs.items()})
    package = import_module("khmer_transliterator._inference").Transliterator()
    return lambda text: str(package.transliterate(text, beam_width=1, max_length=LONGEST + 1))


SYLLABLES = [
    "ka",
    "kha",
    "ko",
    "nga",
    "cha",
    "so",
    "phe",
    "da",
    "ta",
    "tho",
    "na",
    "bo",
    "pha",
    "mo",
    "ya",
    "ro",
    "la",
    "vo",
    "sa",
    "ha",
    "a",
    "srey",
    "pich",
    "mean",
    "chan",
    "ra",
    "vuth",
    "neang",
]


PACKAGE = Package(
    requirement="netra-transliterate==1.0.1",
    needs=("keras==3.10.0", "h5py", "optree", "absl-py", "namex", "khmerspell"),
    kind="GRU of Keras with attention",
    mapped=mapped,
    answer=answer,
)
