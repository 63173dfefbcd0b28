"""Marian's configuration of a model: options of training that change its computation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from jumok_export.importers.huggingface.settings import shown
from jumok_export.models.layers import Activation
from jumok_serve.files import UnusableFileError

ACTIVATIONS: Mapping[str, Activation] = {"relu": "relu", "swish": "silu", "gelu": "quick_gelu"}
"""Marian's names of activations; its gelu is x * sigmoid(1.702 x)."""
MOST_DEPTH = 100
"""Nested levels of a configuration."""
MOST_NODES = 2**16
"""Values, lists and mappings of a configuration."""
MOST_DIGITS = 20
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Reads every value as text, and makes no objects."""


def parse_yaml(text: str) -> Any:
    """Parse YAML into mappings, lists and strings.

    The number of values is bounded with each use of an alias, as a few of them make lists of any size.

    Raises:
        UnusableFileError: no YAML, or too large; the message continues the file's name.
    """
    try:
        _check_events(yaml.parse(text, Loader=_LOADER))
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a BaseLoader makes strings alone
    except UnusableFileError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnusableFileError(f"is not YAML: {' '.join(str(error).split())}") from error


def _check_events(events: Iterable[Any]) -> None:
    """Refuse content that is larger or deeper than it looks, before objects are made of it."""
    nodes = 0  # those of aliases counted again at each use
    sizes: dict[str | None, int] = {}  # nodes by anchor
    nested: list[tuple[str | None, int]] = []  # anchors of open collections, and the nodes before them
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise UnusableFileError(f"has the alias {shown(event.anchor)} of itself or of nothing")
            nodes += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            nested.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = nested.pop()
            sizes[anchor] = nodes - before
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            sizes[event.anchor] = 1
        if nodes > MOST_NODES or len(nested) > MOST_DEPTH:
            raise UnusableFileError(f"has more than {MOST_NODES} values, or more than {MOST_DEPTH} levels of them")


class MarianSettings:
    """Options of a model, with Marian's defaults; problems are collected.

    Args:
        options: options by name; values are strings or lists of strings.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self.problems: list[str] = []

    def text(self, name: str, default: str) -> str:
        """Read a text."""
        value = self._options.get(name, default)
        if isinstance(value, str):
            return value
        self.problems.append(f"option {name} must be a text, got {shown(value)}")
        return default

    def integer(self, name: str, default: int, *, most: int) -> int:
        """Read an integer from 1 to `most`."""
        value = self._options.get(name, str(default))
        if _is_integer(value) and 1 <= int(value) <= most:
            return int(value)
        self.problems.append(f"option {name} must be an integer from 1 to {most}, got {shown(value)}")
        return default

    def number(self, name: str, default: float) -> float:
        """Read a number."""
        value = self._options.get(name, str(default))
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if abs(number) < 1e6:
            return number
        self.problems.append(f"option {name} must be a number, got {shown(value)}")
        return default

    def flag(self, name: str) -> bool:
        """Read a flag, which is off by default."""
        value = self._options.get(name, "false")
        if value in {"true", "false"}:
            return bool(value == "true")
        self.problems.append(f"option {name} must be true or false, got {shown(value)}")
        return False

    def integers(self, name: str) -> tuple[int, ...]:
        """Read a list of positive integers, empty by default."""
        values = self._options.get(name, [])
        if isinstance(values, list) and all(map(_is_integer, values)):
            return tuple(map(int, values))
        self.problems.append(f"option {name} must be a list of integers, got {shown(values)}")
        return ()

    def operations(self, name: str, default: str) -> str:
        """Read the operations around a layer; dropout, which matters only in training, is left out."""
        return self.text(name, default).replace("d", "")

    def activation(self) -> Activation:
        """Read the activation of the feed-forward layers."""
        name = self.text("transformer-ffn-activation", "swish")
        if name not in ACTIVATIONS:
            self.problems.append(
                f"option transformer-ffn-activation {shown(name)} is not supported: there are {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS.get(name, "relu")

    def require(self, name: str, default: str, supported: Sequence[str], reason: str) -> str:
        """Read a text that must be one of the supported ones; returns the first for others."""
        value = self.text(name, default)
        if value in supported:
            return value
        self.problems.append(f"option {name} is {shown(value)}: {reason}")
        return supported[0]


def _is_integer(value: object) -> bool:
    """True for the digits of a number that is not huge."""
    return isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS
