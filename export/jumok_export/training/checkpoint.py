"""Checkpoints of training runs: self-contained files with weights, configuration and vocabularies."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jumok_export.models.recurrent import RecurrentSizes, make_recurrent
from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.models.ssru import SSRUTransformer
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_export.training.configuration import Configuration, RecurrentSection, configuration_from_values
from jumok_export.training.vocabulary import Vocabulary
from jumok_proto.errors import JumokError
from jumok_serve.manifest.parts import MANIFEST_FILE

BEST = "best.ckpt"
"""File name of the checkpoint with the best validation score."""
LAST = "last.ckpt"
"""File name of the checkpoint that a run resumes from."""


class CheckpointError(JumokError, ValueError):
    """A checkpoint is missing or invalid; the message says which and why."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model with its configuration and vocabularies.

    Attributes:
        target_vocabulary: vocabulary of the target language; the same object if the languages share one.
        model: the model, in evaluation mode.
        epoch: number of epochs of training.
        validation_score: greedy BLEU or chrF on the validation set, as the configuration says; None if it was not
            measured.
        files: SHA-256 of the training files by name; empty if it was not noted.
    """

    path: Path
    configuration: Configuration
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    model: Seq2Seq
    epoch: int
    validation_score: float | None
    files: Mapping[str, str]


def build_model(configuration: Configuration, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """Make the untrained model of a configuration, for vocabularies of these sizes."""
    sizes = configuration.model.model_dump(exclude={"family"})
    if isinstance(configuration.model, RecurrentSection):
        return make_recurrent(
            RecurrentSizes(source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary, **sizes)
        )
    limits = configuration.bundle.limits
    longest = max(limits.max_source_length, limits.max_target_length, 2 * configuration.data.max_length)
    kind = SSRUTransformer if sizes.pop("decoder") == "ssru" else Transformer
    return kind(
        TransformerSizes(
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            max_positions=longest,
            **sizes,
        )
    )


def checkpoint_entry(
    configuration: Configuration,
    source_vocabulary: Vocabulary,
    target_vocabulary: Vocabulary,
    files: Mapping[str, str],
) -> dict[str, Any]:
    """A checkpoint's content besides weights: tensors and plain values, whose loading runs no code."""

    def as_tensor(vocabulary: Vocabulary) -> torch.Tensor:
        return torch.frombuffer(bytearray(vocabulary.model), dtype=torch.uint8)

    separate = target_vocabulary is not source_vocabulary
    return {
        "configuration": configuration.model_dump(mode="json"),
        "source_vocabulary": as_tensor(source_vocabulary),
        "target_vocabulary": as_tensor(target_vocabulary) if separate else None,
        "files": dict(files),
    }


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint file, or the best checkpoint of a run's folder.

    Raises:
        CheckpointError: no checkpoint, or not one of `jumok train`.
    """
    file = path / BEST if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"{path}: {_absent(path)}")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        entry = content["jumok"]
        configuration = configuration_from_values(entry["configuration"])
    except Exception as error:
        raise CheckpointError(f"{file} is not a checkpoint of `jumok train`") from error
    source = Vocabulary(entry["source_vocabulary"].numpy().tobytes())
    separate = entry["target_vocabulary"]
    target = source if separate is None else Vocabulary(separate.numpy().tobytes())
    model = build_model(configuration, len(source), len(target))
    weights = {
        name.removeprefix("model."): value for name, value in content["state_dict"].items() if name.startswith("model.")
    }
    model.load_state_dict(weights)
    scores = [
        state["best_model_score"] for state in content.get("callbacks", {}).values() if "best_model_score" in state
    ]
    score = next((float(value) for value in scores if value is not None), None)
    return Checkpoint(
        path=file,
        configuration=configuration,
        source_vocabulary=source,
        target_vocabulary=target,
        model=model.eval(),
        epoch=int(content["epoch"]) + 1,
        validation_score=score,
        files=entry.get("files", {}),
    )


def _absent(path: Path) -> str:
    """Say why there is no checkpoint, by the files of a folder."""
    if not path.is_dir():
        return "no such file"
    if (path / MANIFEST_FILE).is_file():
        return f"it is a bundle already: 'jumok serve {path}' serves it"
    if (path / "config.json").is_file():
        return f"it is no run of 'jumok train': 'jumok import {path} --out BUNDLE' makes a bundle of other models"
    return f"no {BEST} in it: has 'jumok train' finished an epoch?"
