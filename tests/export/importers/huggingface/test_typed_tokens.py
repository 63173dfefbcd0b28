"""Special tokens that texts spell, against transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_serve.tokenizers import load_tokenizer
from jumok_serve.tokenizers.tokenizer import Tokenizer
from tests.support.checkpoints.tokenizer_checkpoints import DIRECTIONS, change, load_reference, read, size_of, write

ADDED = {
    "bart": ["<mask>"],
    "mbart": ["<mask>"],
    "t5": ["<extra_id_0>", "<extra_id_3>"],
    "generic": ["<2de>", "[SEP]"],
    "marian": ["<sep>", "<hl>"],
    "m2m100": ["<sep>", "<hl>"],
}
"""Special tokens that models of each kind read."""


def add(folder: Path, kind: str) -> None:
    """Add the special tokens that a kind of checkpoint lacks, as `save_pretrained` writes them."""
    tokens = ADDED[kind]
    if kind == "generic":
        fields = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        first = 1 + max(token["id"] for token in fields["added_tokens"])
        fields["added_tokens"] += [
            {"id": first + at, "content": token, "special": True, **flags} for at, token in enumerate(tokens)
        ]
        write(folder / "tokenizer.json", fields)
        change(folder, additional_special_tokens=tokens)
    elif kind == "marian":
        vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
        write(folder / "vocab.json", vocabulary | {token: len(vocabulary) + at for at, token in enumerate(tokens)})
        change(folder, additional_special_tokens=tokens)
    elif kind == "m2m100":
        vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
        write(folder / "vocab.json", vocabulary | {token: len(vocabulary) + at for at, token in enumerate(tokens)})
        stated = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        named = "extra_special_tokens" if "extra_special_tokens" in stated else "additional_special_tokens"
        change(folder, **{named: [*(stated.get(named) or []), *tokens]})


def loaded(folder: Path, kind: str, bundle: Path) -> tuple[Tokenizer, Any]:
    """Our tokenizer, from a bundle's files, and that of transformers."""
    reference = load_reference(folder)
    imported = read(folder, size_of(reference), *DIRECTIONS.get(kind, ()))
    bundle.mkdir()
    return load_tokenizer(imported.tokenizer.save(bundle), bundle), reference


@pytest.mark.parametrize("kind", ADDED)
def test_special_tokens_are_read_as_by_transformers(make: Callable[[str], Path], kind: str, tmp_path: Path) -> None:
    folder = make(kind)
    add(folder, kind)
    ours, reference = loaded(folder, kind, tmp_path / "bundle")
    first, last = ADDED[kind][0], ADDED[kind][-1]
    numbers = {reference.convert_tokens_to_ids(token) for token in (first, last)}
    for text in (
        f"{first}The cat",
        f"The cat {first} is {last} sleeping.",
        f"a{first}{last}b",
        f"{last}",
        f"  {first}  two  spaces {last} ",
        f"{first[:-1]} {first[1:]}",
    ):
        ids = ours.encode(text)
        assert ids == reference(text, add_special_tokens=False)["input_ids"]
        assert bool(numbers & set(ids)) == (first in text or last in text)
        assert ours.encode_all([text]) == [ids]
        assert ours.source_tokens(ids) == reference.convert_ids_to_tokens(ids)
    for token in numbers:
        assert ours.decode([token]) == reference.decode([token], skip_special_tokens=True) == ""
    assert reference.eos_token_id not in ours.encode(f"a {reference.eos_token} {first}")


@pytest.mark.parametrize("kind", ["marian", "m2m100"])
def test_special_tokens_that_cannot_be_read_are_named(make: Callable[[str], Path], kind: str) -> None:
    folder = make(kind)
    change(folder, additional_special_tokens=["<sep>"], extra_special_tokens=None)
    with pytest.raises(CheckpointError, match="the special token '<sep>' has no id: save the tokenizer with save_pre"):
        read(folder, 1000, "en", "de")
    entry = {"content": "<sep>", "special": True, "lstrip": True}
    change(folder, added_tokens_decoder={"700": entry})
    with pytest.raises(CheckpointError, match="lstrip of the special token '<sep>' is not supported: set it to false"):
        read(folder, 1000, "en", "de")
    change(folder, added_tokens_decoder={"700": entry | {"lstrip": False}})
    assert read(folder, 1000, "en", "de").tokenizer.encode("<sep>") == [700]
    # A model without this id cannot read it.
    assert 700 not in read(folder, 690, "en", "de").tokenizer.encode("<sep>")
