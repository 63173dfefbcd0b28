"""netra-transliterate: English to Khmer letters, a GRU of Keras with additive attention."""

import io
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pypi_models.fixed_length import ReadsPadding
from benchmarks.pypi_models.package import Answer, Mapped, Package, fill
from jumok_export.models.cells import Cell
from jumok_export.models.foreign_cells import load_keras
from jumok_export.models.recurrent import RecurrentSizes
from jumok_export.models.recurrent_encoder import RecurrentEncoder
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

PAD = 0
LONGEST = 31
FOLDER = Path("khmer_transliterator", "weights")


class Projected(nn.Module):
    """An encoder with a projection of its states."""

    def __init__(self, encoder: RecurrentEncoder, projection: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """See `RecurrentEncoder`."""
        states, last = self.encoder(x, lengths)
        return self.projection(states), last


def read_weights(folder: Path) -> Callable[[str], list[Tensor]]:
    """Read the weights of a Keras file; returns those of a layer by its name."""
    with zipfile.ZipFile(folder / FOLDER / "bi_gru_attention_khmer_transliterator.keras") as file:
        stored = import_module("h5py").File(io.BytesIO(file.read("model.weights.h5")))["layers"]
    return lambda name: [torch.from_numpy(stored[name]["vars"][number][:]) for number in sorted(stored[name]["vars"])]


def model_of(folder: Path, length: int) -> ReadsPadding:
    """Map the package's weights to a model of sources padded to a length."""
    weights = read_weights(folder)
    english, khmer, scale = (weights(name)[0] for name in ("embedding", "embedding_1", "additive_attention"))
    sizes = RecurrentSizes(
        source_vocabulary=len(english), target_vocabulary=len(khmer), cell="gru", attention="concat", readout="direct",
        first_state="zero", embedding=english.shape[1], width=len(scale), bidirectional=False,
    )  # fmt: skip
    model = ReadsPadding(sizes, length=length, pad=PAD)
    encoder = RecurrentEncoder("gru", sizes.embedding, 2 * sizes.width, layers=1, bidirectional=True)
    model.encoder = Projected(encoder, nn.Linear(2 * sizes.width, sizes.width))  # type: ignore[assignment]  # returns the same
    cells = [module for module in (*encoder.modules(), *model.decoder.modules()) if isinstance(module, Cell)]
    for cell, name in zip(cells, ("bidirectional/forward_layer", "bidirectional/backward_layer", "gru"), strict=True):
        load_keras(cell, *weights(f"{name}/cell"))
    identity = torch.eye(sizes.width)
    fill(model, "attention", {"weight": scale, "query_projection.weight": identity, "key_projection.weight": identity})
    (projection, of_projection), (kernel, bias) = weights("time_distributed/layer"), weights("dense")
    fill(model, "encoder.projection", {"weight": projection.T, "bias": of_projection})
    fill(model, "output", {"weight": kernel.roll(sizes.width, 0).T, "bias": bias})  # here the context comes first
    fill(model, "source_embedding", {"weight": english})
    fill(model, "target_embedding", {"weight": khmer})
    return model


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    assets = read_assets(folder)
    lists = [["<pad>", *assets[f"{side}_tokenizer"].word_index] for side in ("eng", "khm")]
    start, end = lists[1].index("\t"), lists[1].index("\n")
    lists[1][start], lists[1][end] = "<s>", "</s>"
    return Mapped(
        model=model_of(folder, assets["max_eng_len"]),
        tokenizer=WordListTokenizer("character", *lists, unknown="<unk>", special_tokens=["<pad>", "<s>", "</s>"]),
        special_tokens=SpecialTokens(pad=PAD, start=start, eos=(end,), unk=1),
        languages=Languages.of_pair("en", "km", suffix=()),
        limits=Limits(max_source_length=assets["max_eng_len"], max_target_length=LONGEST),
    )


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
