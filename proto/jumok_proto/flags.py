"""Command-line flags of decoding options."""

from collections.abc import Callable
from typing import Any

import click

from jumok_proto.options import OPTIONS, EarlyStopping, Kind

EARLY_STOPPING: dict[str, EarlyStopping] = {"false": False, "true": True, "never": "never"}


def _early_stopping(_context: click.Context, _parameter: click.Parameter, value: str | None) -> EarlyStopping | None:
    return EARLY_STOPPING.get(value or "")


def _token_ids(_context: click.Context, _parameter: click.Parameter, value: tuple[int, ...]) -> tuple[int, ...] | None:
    return value or None


_SETTINGS: dict[Kind, dict[str, Any]] = {
    "integer": {"type": int},
    "number": {"type": float},
    "flag": {"default": None},
    "token_id": {"type": int, "metavar": "ID"},
    "token_ids": {"type": int, "metavar": "ID", "multiple": True, "callback": _token_ids},
    "early_stopping": {"type": click.Choice(list(EARLY_STOPPING)), "callback": _early_stopping},
}


def decoding_flag(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flag of an option."""
    option, flag = OPTIONS[name], f"--{name.replace('_', '-')}"
    described = option.help
    if option.kind == "flag":
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    elif option.kind == "token_ids":
        flag, described = flag.removesuffix("s"), f"{described}; repeatable."
    return click.option(flag, name, **_SETTINGS[option.kind], help=described)


def decoding_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of all options but the number of hypotheses."""
    for name in reversed(list(OPTIONS)):
        if name != "num_hypotheses":
            command = decoding_flag(name)(command)
    return command
