"""From text to bundle: models, training, ONNX export, quantization and verification."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jumok_export.bundles.export import export_bundle

__all__ = ["export_bundle"]


def __getattr__(name: str) -> Any:
    # On first use, because it imports PyTorch, which takes seconds.
    if name == "export_bundle":
        from jumok_export.bundles.export import export_bundle  # noqa: PLC0415

        return export_bundle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
