"""Types of a server's settings."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator

from jumok_serve.cache import EXAMPLE, HubName, parse_hub_name


def _no_boolean(value: object) -> object:
    """Refuse true and false for a number; Python takes them for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def _bundle(value: object) -> HubName | Path:
    """Read the folder of a bundle, or the name of a model on the hub."""
    if isinstance(value, str | Path) and Path(value).is_dir():
        return Path(value)
    name = parse_hub_name(value) if isinstance(value, str) else None
    if name is None:
        raise ValueError(f"is neither the folder of a bundle nor the name of a model, such as {EXAMPLE}")
    return name


BundleSource = Annotated[HubName | Path, PlainValidator(_bundle), PlainSerializer(str)]
Whole = Annotated[int, BeforeValidator(_no_boolean)]
Positive = Annotated[Whole, Field(ge=1)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]

Seconds = Annotated[Number, Field(gt=0, le=1_000_000)]
"""A time; gRPC counts milliseconds in 32 bits."""


def listed(setting: str | None) -> list[str]:
    """Return the parts of a setting, which commas separate."""
    return [part.strip() for part in (setting or "").split(",") if part.strip()]
