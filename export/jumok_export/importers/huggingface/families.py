"""Supported model families, and the choice of one by config.json."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from jumok_export.graphs.storage import WeightsFile
from jumok_export.importers.huggingface import bart, t5
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.parameters import Weights
from jumok_export.importers.huggingface.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models that can be imported."""

    architecture: str
    aliases: Mapping[str, str]
    embeddings: Sequence[str]
    build: Callable[[Settings, Weights], ImportedModel]


def _absolute(architecture: str, family: bart.Family) -> Family:
    build = partial(bart.build, family)
    return Family(architecture=architecture, aliases=bart.ALIASES, embeddings=bart.EMBEDDINGS, build=build)


def _relative(architecture: str, family: t5.Family) -> Family:
    build = partial(t5.build, family)
    return Family(architecture=architecture, aliases=t5.ALIASES, embeddings=t5.EMBEDDINGS, build=build)


_FAMILIES = {
    "marian": _absolute("MarianMTModel", bart.MARIAN),
    "m2m_100": _absolute("M2M100ForConditionalGeneration", bart.M2M100),
    "bart": _absolute("BartForConditionalGeneration", bart.BART),
    "mbart": _absolute("MBartForConditionalGeneration", bart.MBART),
    "pegasus": _absolute("PegasusForConditionalGeneration", bart.PEGASUS),
    "t5": _relative("T5ForConditionalGeneration", t5.T5_FAMILY),
    "mt5": _relative("MT5ForConditionalGeneration", t5.MT5_FAMILY),
    "umt5": _relative("UMT5ForConditionalGeneration", t5.UMT5_FAMILY),
}
"""Families by `model_type` of transformers."""

_REASONS = {
    "LEDForConditionalGeneration": "its encoder attends within windows",
    "NllbMoeForConditionalGeneration": "its feed-forward layers are mixtures of experts",
    "EncoderDecoderModel": "its halves are models of their own",
}
"""Reasons why related architectures are not supported."""
_FORMER = {"T5WithLMHeadModel": "T5ForConditionalGeneration"}
"""Names of architectures in early versions of transformers."""

ARCHITECTURES = tuple(family.architecture for family in _FAMILIES.values())
"""Architectures that can be imported."""


def build_model(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], kept: WeightsFile | None = None
) -> ImportedModel:
    """Make the model of a checkpoint.

    Args:
        tensors: weights by name, as any version of `save_pretrained` writes them; float32 tensors are not copied.
        kept: see `Weights`.

    Raises:
        CheckpointError: unsupported or contradictory architecture, configuration or weights; lists all problems.
    """
    family = choose_family(config)
    settings, weights = Settings(config, family.aliases), Weights(tensors, family.embeddings, kept)
    imported = family.build(settings, weights)
    problems = [*settings.problems, *weights.problems]
    if problems:
        raise CheckpointError(problems)
    return imported


def choose_family(config: Mapping[str, Any]) -> Family:
    """Choose the family of a config.json.

    Raises:
        CheckpointError: an unsupported architecture; lists the supported ones.
    """
    problems = []
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
        problems.append(f"its weights are quantized by {method!r}: import the original weights, and quantize those")
    if config.get("auto_map"):
        problems.append(
            "auto_map names code of its own, which is never run: if the model is one of transformers, take it out of "
            "config.json"
        )
    named = [_FORMER.get(name, name) for name in config.get("architectures") or ()]
    kind = config.get("model_type")
    chosen = [name for name, family in _FAMILIES.items() if (family.architecture in named if named else name == kind)]
    supported = f"supported are {', '.join(ARCHITECTURES)}"
    if not chosen:
        found = f"architecture {', '.join(named)}" if named else f"model_type {kind!r}"
        reason = next((f" ({_REASONS[name]})" for name in named if name in _REASONS), "")
        problems.append(f"{found} is not supported{reason}: {supported}")
    elif kind is not None and chosen[0] != kind:
        problems.append(f"architecture {named[0]} and model_type {kind!r} do not belong together: {supported}")
    if problems:
        raise CheckpointError(problems)
    return _FAMILIES[chosen[0]]
