"""Commands that make bundles: `jumok train`, `export`, `import` and `add-native`."""

from importlib.util import find_spec

from jumok_export.cli.export_commands import add_native, export, train
from jumok_export.cli.import_command import import_model

__all__ = ["add_native", "export", "import_model", "train"]

# Commands import these packages when they run, because that takes seconds; missing ones are reported at once.
for _package in ("torch", "lightning", "onnx", "onnxscript", "matplotlib", "sacrebleu"):
    if find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)
