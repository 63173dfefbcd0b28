"""Tokenizer files whose fields have other types than expected are refused, never a crash."""

import json
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.folder import open_checkpoint
from jumok_export.importers.huggingface.tokenizer import read_tokenizer
from jumok_serve.files import MOST_JSON_BYTES
from tests.support.checkpoints.tokenizer_checkpoints import CHECKPOINTS

SIZE = 700
WRONG: tuple[Any, ...] = (
    *(None, [], {}, 5, -1, 2**70, True, 0.5, float("inf")),
    *("x", "\ud800", [[1]], [{"a": 1}], {"9" * 99: 1}),
)
FIELDS = (
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "language_codes", "src_lang"),
    *("target_lang", "eos_token", "unk_token", "tokenizer_class", "separate_vocabs", "clean_up_tokenization_spaces"),
    *("sp_model_kwargs", "model_max_length", "task_specific_params"),
)


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")  # escaped, so that surrogates can be written


@pytest.fixture(params=["marian-codes", "m2m100", "generic"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save, config = CHECKPOINTS[request.param]
    save(tmp_path)
    write(tmp_path / "config.json", config)
    return tmp_path


def attempt(folder: Path) -> bool:
    """Read the tokenizer; True if it was read, False if it was refused with short reasons."""
    problems: list[str] | None = None
    config = json.loads((folder / "config.json").read_text("utf-8"))
    try:
        with warnings.catch_warnings(action="ignore"):
            read_tokenizer(
                folder,
                config,
                source_language="en",
                target_language="deu" if (folder / "target.spm").exists() else "de",
                source_vocabulary=SIZE,
                target_vocabulary=SIZE,
                forced_first=None,
            )
    except CheckpointError as error:
        problems = list(error.problems)
    assert problems is None or (problems and all(len(problem) < 2000 for problem in problems)), problems
    return problems is None


def test_fields_of_wrong_types(folder: Path) -> None:
    assert attempt(folder)
    settings = folder / "tokenizer_config.json"
    before, config = settings.read_text("utf-8"), (folder / "config.json").read_text("utf-8")
    refused = 0
    for field in FIELDS:
        for value in WRONG:
            write(folder / "config.json", json.loads(config) | {field: value})
            write(settings, json.loads(before) | {field: value})
            refused += not attempt(folder)
            settings.write_text(before, "utf-8")
    assert refused > 20


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of JSON with each key of it, a few of long lists and objects."""
    keys = list(content) if isinstance(content, dict) else range(len(content))
    for key in list(keys)[:8]:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places(content[key])


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_values_of_wrong_types(folder: Path, name: str) -> None:
    if not (folder / name).exists():
        write(folder / name, {"eos_token": "</s>", "additional_special_tokens": ["<a>", {"content": "<b>"}]})
    content = json.loads((folder / name).read_text("utf-8"))
    chosen = random.Random(4)
    found = list(places(content))
    for container, key in chosen.sample(found, min(len(found), 60)):
        before = container[key]
        container[key] = chosen.choice(WRONG)
        write(folder / name, content)
        attempt(folder)
        container[key] = before


def test_added_tokens_without_numbers(folder: Path) -> None:
    for value in WRONG:
        write(folder / "added_tokens.json", {"<new>": value})
        attempt(folder)


def test_a_file_larger_than_any_vocabulary_is_refused_unread(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    with (folder / "more.spm").open("wb") as file:
        os.truncate(file.fileno(), MOST_JSON_BYTES + 1)
    with pytest.raises(CheckpointError, match=rf"more.spm has {MOST_JSON_BYTES + 1} bytes, at most {MOST_JSON_BYTES}"):
        open_checkpoint(folder)
