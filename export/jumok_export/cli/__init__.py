"""Commands that make bundles: `jumok train`, `export`, `import`, `ensemble` and `add-native`."""

from jumok_export.cli.export_commands import add_native, ensemble, export, train
from jumok_export.cli.import_command import import_model

__all__ = ["add_native", "ensemble", "export", "import_model", "train"]
