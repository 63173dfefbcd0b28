"""Import of Hugging Face checkpoints as models and as bundles."""

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.families import ARCHITECTURES, build_model
from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.importing import import_checkpoint

__all__ = ["ARCHITECTURES", "CheckpointError", "ImportedModel", "build_model", "import_checkpoint"]
