"""Fields of config.json, read with the defaults, aliases and checks of a model family."""

from collections.abc import Mapping
from typing import Any

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.models.layers import Activation

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}
"""Supported activations by Hugging Face's names."""


MOST = 2**24
"""Largest size of a model, such as its vocabulary."""
MOST_LAYERS = 1000
MOST_POSITIONS = 2**20
MOST_IN_TABLE = 2**27
"""Numbers in a table of positions."""
MOST_CHARACTERS = 80
"""Characters of a value in a message."""


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


class Settings:
    """Fields of a configuration; problems are collected.

    Args:
        aliases: other names of fields, which win over the fields as in transformers.
    """

    def __init__(self, config: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
        self._config = {**config, **{field: config[alias] for alias, field in aliases.items() if alias in config}}
        self.problems: list[str] = []
        self._unusable = False
        if not self.flag("is_encoder_decoder", default=True):
            self.problems.append("is_encoder_decoder is false: only models with encoder and decoder can be imported")
        if self.flag("is_decoder", default=False):
            self.problems.append("is_decoder is true: only models with encoder and decoder can be imported")
        if self._config.get("per_layer_config"):
            self.problems.append("per_layer_config is set: layers that differ from one another are not supported")

    def given(self, name: str) -> bool:
        """True if a field has a value."""
        return self._config.get(name) is not None

    def integer(self, name: str, default: int, *, least: int = 1, most: int = MOST) -> int:
        """Read an integer from `least` to `most`; returns `least` for an invalid value."""
        value = self._config.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        over = isinstance(value, int) and value > most
        wanted = f"of at most {most}" if over else f"of at least {least}"
        self._refuse(f"{name} must be an integer {wanted}, got {shown(value)}")
        return least

    def number(self, name: str, default: float) -> float:
        """Read a number from 0 to `MOST`."""
        value = self._config.get(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST:
            return float(value)
        self._refuse(f"{name} must be a number from 0 to {MOST}, got {shown(value)}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """Read a boolean."""
        value = self._config.get(name, default)
        if isinstance(value, bool):
            return value
        self._refuse(f"{name} must be true or false, got {shown(value)}")
        return default

    def text(self, name: str, default: str) -> str:
        """Read a string."""
        value = self._config.get(name, default)
        if isinstance(value, str):
            return value
        self._refuse(f"{name} must be a string, got {shown(value)}")
        return default

    def activation(self, name: str, default: str) -> Activation:
        """Read an activation."""
        value = self.text(name, default)
        if value in ACTIVATIONS:
            return ACTIVATIONS[value]
        self.problems.append(f"{name} {shown(value)} is not supported: there are {', '.join(ACTIVATIONS)}")
        return "relu"

    def divisible(self, width: str, heads: str, sizes: tuple[int, int]) -> None:
        """Check that the heads divide a width."""
        if sizes[0] % sizes[1]:
            self._refuse(f"{width} must be a multiple of {heads}, got {sizes[0]} and {sizes[1]}")

    def table(self, names: str, rows: int, columns: int) -> None:
        """Check that a table of positions fits into memory."""
        if rows * columns > MOST_IN_TABLE:
            self._refuse(f"{names} must make a table of at most {MOST_IN_TABLE} numbers, got {rows} x {columns}")

    def within(self, name: str, token: int, vocabulary: int) -> None:
        """Check that a token is in the vocabulary."""
        if token >= vocabulary:
            self._refuse(f"{name} must be less than the vocabulary's {vocabulary} tokens, got {token}")

    def distances(self, buckets: int, max_distance: int) -> None:
        """Check buckets and distances of relative positions."""
        if not buckets // 2 < max_distance:
            self._refuse(
                "relative_attention_max_distance must be more than half of relative_attention_num_buckets, "
                f"got {max_distance} and {buckets}"
            )

    def require_sizes(self) -> None:
        """Check that a model can be built, to compare its weights.

        Raises:
            CheckpointError: a field with an impossible value.
        """
        if self._unusable:
            raise CheckpointError(self.problems)

    def _refuse(self, problem: str) -> None:
        self.problems.append(problem)
        self._unusable = True
