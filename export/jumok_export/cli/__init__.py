"""Commands that make bundles: `jumok train`, `export`, `import`, `ensemble` and `add-native`."""

from jumok_export.cli.export_commands import add_native, ensemble, export, train
from jumok_export.cli.import_command import import_model
from jumok_export.installed import need

__all__ = ["add_native", "ensemble", "export", "import_model", "train"]

# Commands import these packages when they run, because that takes seconds; missing ones are reported at once.
need("torch", "lightning", "onnx", "onnxscript", "matplotlib", "sacrebleu")
