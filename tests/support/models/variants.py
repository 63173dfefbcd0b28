"""Copies of bundles with another manifest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edited(bundle: Path, copy: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a bundle and apply ``edit`` to its manifest, in JSON values."""
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    edit(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return copy


def directed(source: str, target: str) -> Callable[[dict[str, Any]], None]:
    """Give a model of one direction other languages, and a name made of them."""

    def edit(manifest: dict[str, Any]) -> None:
        languages = manifest["languages"]
        manifest["name"] = f"tiny-{source}-{target}"
        manifest["languages"] = {
            "sources": {source: languages["sources"]["en"]},
            "targets": {target: languages["targets"]["de"]},
            "default": {"source": source, "target": target},
        }

    return edit


def unconstrained(manifest: dict[str, Any]) -> None:
    """Suppress no token, so that the search's probabilities are the model's."""
    manifest["special_tokens"]["suppress"] = []


def multilingual(manifest: dict[str, Any]) -> None:
    """Set two source and three target languages, each with its own tokens around a text, and four pairs."""
    manifest["languages"] = {
        "sources": {"en": {"suffix": [3]}, "fr-FR": {"prefix": [21, 22], "suffix": [3, 23]}},
        "targets": {
            "de": {},
            "nl": {"source_prefix": [31], "forced_first": 32},
            "pt-BR": {"start": 5, "forced_first": 6},
        },
        "pairs": [
            {"source": "en", "target": "de"},
            {"source": "en", "target": "nl", "task_prefix": "two men: "},
            {"source": "fr-FR", "target": "nl"},
            {"source": "fr-FR", "target": "pt-BR"},
        ],
        "default": {"source": "en", "target": "de", "task_prefix": ""},
    }


def without(*graphs: str) -> Callable[[dict[str, Any]], None]:
    """Remove graphs from every precision."""

    def edit(manifest: dict[str, Any]) -> None:
        for variant in manifest["precisions"].values():
            for graph in graphs:
                del variant["graphs"][graph]

    return edit
