"""Checkpoints of training runs: self-contained files with weights, configuration and vocabularies."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jumok_export.models.recurrent import RecurrentSizes, make_recurrent
from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_export.training.configuration import Configuration, RecurrentSection, configuration_from_values
from jumok_export.training.vocabulary import Vocabulary
from jumok_proto.errors import JumokError

BEST = "best.ckpt"
"""Name of the checkpoint with the best validation score, in a run's folder."""
LAST = "last.ckpt"
"""Name of the checkpoint that a run resumes from, in its folder."""


class CheckpointError(JumokError, ValueError):
    """A checkpoint that cannot be used; the message says which and why."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model with everything that belongs to it.

    Attributes:
        path: the file it came from.
        configuration: what it was trained by.
        source_vocabulary: of the source language.
        target_vocabulary: of the target language; the same object where they share one.
        model: the model, in evaluation mode.
        epoch: number of epochs it was trained for.
        validation_bleu: greedy BLEU on the validation set, where it was taken.
        files: SHA-256 of the files it was trained on, by name, where that was noted.
    """

    path: Path
    configuration: Configuration
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    model: Seq2Seq
    epoch: int
    validation_bleu: float | None
    files: Mapping[str, str]


def build_model(configuration: Configuration, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """The untrained model of a configuration, for vocabularies of so many tokens."""
    sizes = configuration.model.model_dump(exclude={"family"})
    if isinstance(configuration.model, RecurrentSection):
        return make_recurrent(
            RecurrentSizes(source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary, **sizes)
        )
    limits = configuration.bundle.limits
    longest = max(limits.max_source_length, limits.max_target_length, 2 * configuration.data.max_length)
    return Transformer(
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
    """What a checkpoint holds besides the weights: tensors and plain values only, so that loading it runs no code."""

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
    """The checkpoint in a file, or the best one of a run's folder.

    Raises:
        CheckpointError: there is none, or it is not one of `jumok train`.
    """
    file = path / BEST if path.is_dir() else path
    if not file.is_file():
        hint = f"no {BEST} in it: has `jumok train` finished an epoch?" if path.is_dir() else "no such file"
        raise CheckpointError(f"{path}: {hint}")
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
        validation_bleu=score,
        files=entry.get("files", {}),
    )
