"""Export of a bundle on a machine without native kernels."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from jumok_export.bundles import export, recipe
from jumok_serve.bundle.bundle import Bundle


def test_a_bundle_without_native_graphs_is_warned_about(
    export_tiny: Callable[..., Bundle],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (export, recipe):
        monkeypatch.setattr(module, "library", lambda: None)
    with caplog.at_level(logging.WARNING):
        bundle = export_tiny(tmp_path / "out", precisions=["fp32"])
    assert not bundle.manifest.precisions["fp32"].native
    assert "no native graphs, because this machine has no native kernels; run `jumok add-native`" in caplog.text
