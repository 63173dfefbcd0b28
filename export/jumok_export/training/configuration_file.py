"""Configuration files of training, in TOML, and errors that name their keys."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jumok_export.training.configuration import (
    Configuration,
    RecurrentSection,
    TransformerSection,
    configuration_from_values,
)
from jumok_proto.errors import JumokError
from jumok_serve.files import UnusableFileError, read_file

MOST_BYTES = 2**20
"""Bytes of a configuration file."""


class ConfigurationError(JumokError, ValueError):
    """An invalid configuration file; the message lists every problem with its key."""


def parse_configuration(text: str, origin: str) -> Configuration:
    """Parse a configuration in TOML.

    Args:
        origin: name of the file, for error messages.

    Raises:
        ConfigurationError: no TOML, or unknown keys, missing keys and invalid values; lists all.
    """
    try:
        return configuration_from_values(tomllib.loads(text))
    except ValidationError as error:
        problems = dict.fromkeys(map(_describe, error.errors(include_url=False)))
        raise ConfigurationError("\n  ".join([f"{origin} cannot be used:", *problems])) from error
    except (ValueError, RecursionError) as error:  # not TOML, a number of too many digits, or nested too deeply
        raise ConfigurationError(f"{origin} is not TOML: {error}") from error


def load_configuration(path: Path) -> Configuration:
    """Load a configuration file.

    Raises:
        ConfigurationError: an unreadable file, or as in `parse_configuration`.
    """
    try:
        text = read_file(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, UnusableFileError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    return parse_configuration(text, str(path))


_BRANCHES: Mapping[str, Any] = {"(transformer)": TransformerSection, "(recurrent)": RecurrentSection}


def _nearest(location: Sequence[str | int]) -> str:
    """Suggest the key of the same table that an unknown key may be meant as."""
    *tables, key = [part for part in location if isinstance(part, str)]
    table: Any = Configuration
    for name in tables:
        # A branch of `ModelSection` is in the location by its tag.
        annotation = getattr(table.model_fields.get(name), "annotation", None)
        sections = [part for part in get_args(annotation) if part is not NoneType]
        table = _BRANCHES.get(name) or (sections[0] if len(sections) == 1 else annotation)
        if name == "model":
            table = TransformerSection
        if not hasattr(table, "model_fields"):
            return ""
    similar = difflib.get_close_matches(key, table.model_fields, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _describe(problem: ErrorDetails) -> str:
    # pydantic adds the tags of union branches, which are no identifiers.
    key = ".".join(str(part) for part in problem["loc"] if str(part).isidentifier() or isinstance(part, int))
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key{_nearest(problem['loc'])}"
    if problem["type"] == "missing":
        return f"{key}: missing"
    value = "" if isinstance(problem["input"], dict) else f", got {problem['input']!r}"
    return f"{key}: {problem['msg'].removeprefix('Value error, ')}{value}".removeprefix(": ")
