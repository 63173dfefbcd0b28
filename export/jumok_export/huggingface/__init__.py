"""Models from Hugging Face checkpoints: their configuration and weights become modules that can be exported."""

from jumok_export.huggingface.errors import CheckpointError
from jumok_export.huggingface.families import ARCHITECTURES, build_model
from jumok_export.huggingface.imported import ImportedModel

__all__ = ["ARCHITECTURES", "CheckpointError", "ImportedModel", "build_model"]
