"""Bundles with a tokenizer.json whose library panics: at loading, at some texts, or at some translations."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from tests.support.models.variants import edited

LAST_READABLE = "m"
"""Letters up to this one are read; the library fails on the others."""

# A table of normalization whose trie ends with the code of the last letter that it has.
_SHORT_TRIE = (ord(LAST_READABLE) + 1) * 4
SOME_TEXTS = {
    "type": "Precompiled",
    "precompiled_charsmap": base64.b64encode(_SHORT_TRIE.to_bytes(4, "little") + bytes(_SHORT_TRIE)).decode(),
}
"""Normalizer that fails on some texts."""
NO_TABLE = {"type": "Precompiled", "precompiled_charsmap": ""}
"""Normalizer that fails at loading."""
LONG_STRIP = {"type": "Strip", "content": "e", "start": 9, "stop": 9}
"""Decoder that fails on a token of a few equal letters."""


def with_tokenizer(bundle: Path, copy: Path, **parts: Any) -> Path:
    """Copy a bundle, with a tokenizer.json of words instead of its tokenizer.

    Args:
        parts: fields of the file, such as its normalizer.
    """

    def edit(manifest: dict[str, Any]) -> None:
        old = manifest["tokenizer"]
        size = old["target_vocab_size"]
        tokens = {"<unk>": 1} | {f"word{number}": number for number in range(size) if number != 1}
        fields = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": tokens, "unk_token": "<unk>"},
            **parts,
        }
        content = json.dumps(fields).encode()
        (copy / "tokenizer.json").write_bytes(content)
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name in {old.get("source_model"), old.get("target_model")} - {None}:
            (copy / name).unlink()
            del manifest["files"][name]
        manifest["files"]["tokenizer.json"] = entry
        manifest["tokenizer"] = {
            "kind": "tokenizer_json",
            "file": "tokenizer.json",
            "source_vocab_size": size,
            "target_vocab_size": size,
        }

    return edited(bundle, copy, edit)
