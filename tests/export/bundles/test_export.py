"""Export of a bundle: without native kernels, and errors while graphs are written."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from jumok_export.bundles import export, recipe, variants
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


def test_an_error_is_blamed_on_a_shortlist_only_if_there_is_one(
    export_tiny: Callable[..., Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise ValueError("the graphs cannot be written")

    monkeypatch.setattr(variants, "write_variant", fail)
    with pytest.raises(ValueError, match=r"^the graphs cannot be written$"):
        export_tiny(tmp_path / "out", precisions=["fp32"])
