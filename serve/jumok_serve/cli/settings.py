"""Server settings, read from file, environment and flags by one schema.

Every setting has one name: ``max_queue_tokens`` in the file, ``JUMOK_MAX_QUEUE_TOKENS`` in the environment, and
``--max-queue-tokens`` as a flag. Flags override the environment, the environment the file, and the file the defaults.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jumok_serve.cache import CACHE_VARIABLE
from jumok_serve.cli.configuration import NO_PIVOT, TAG, WEB, Configuration
from jumok_serve.errors import ConfigurationError
from jumok_serve.files import read_file

MAX_FILE_BYTES = 2**20
"""Largest file of settings."""
PREFIX = "JUMOK_"
CONFIGURATION_FILE = "JUMOK_CONFIG"
OTHER_VARIABLES = {
    CONFIGURATION_FILE,
    CACHE_VARIABLE,
    "JUMOK_SERVER",
    "JUMOK_TOKEN",
    "JUMOK_NATIVE",
    "JUMOK_MULTI30K",
    "JUMOK_SOFTWARE",
}
"""Variables that are not settings of a server: its file, and variables of clients, installation and tests."""
_IGNORED = re.compile(r"JUMOK_(TEST_|SERVICE_HOST$|SERVICE_PORT|PORT_\d+_)")
"""Variables of tests, and those that Kubernetes sets for a Service named ``jumok``; all are ignored."""
_LINK = re.compile(r"\w+://")
"""Value that Kubernetes gives JUMOK_PORT then."""

NAMES = tuple(Configuration.model_fields)

_NO_FILE = "Path does not point to a file"
_SAID = {
    _NO_FILE: "is no file",
    "Path does not point to a directory": "is no folder",
    f"String should match pattern '{WEB}'": "should begin with http:// or https://",
    f"String should match pattern '{TAG}'": f"should be a language, such as en, or {NO_PIVOT}",
}
"""Messages for users, by pydantic's messages."""


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """Return the flag of a setting."""
    return "BUNDLE" if name == "bundles" else f"--{name.removesuffix('_s').replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value of a setting, and its origin: file, environment or flag."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Effective:
    """A configuration, and the given values in it; the others are defaults."""

    configuration: Configuration
    given: Mapping[str, GivenValue]

    def toml(self) -> str:
        """Return a file with the same configuration, without unset settings."""
        lines = []
        for name, value in self.configuration.model_dump(mode="json").items():
            if value is not None:
                written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
                lines.append(f"{name} = {written}  # {self.given[name].origin if name in self.given else 'default'}")
        return "\n".join(lines) + "\n"


def read_configuration(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Effective:
    """Merge file, environment and flags; a flag that was not given is None.

    Raises:
        ConfigurationError: lists every wrong or unknown setting.
    """
    problems: list[str] = []
    given: dict[str, GivenValue] = {}
    if file is not None:
        given |= _from_file(file, problems)
    given |= _from_environment(environment, problems)
    passed = {name: value for name, value in flags.items() if value not in (None, ())}
    given |= {name: GivenValue(value, _flag_origin(name)) for name, value in passed.items()}
    values = {name: one.value for name, one in given.items()}
    try:
        configuration = Configuration.model_validate(values)
    except ValidationError as error:
        wrong = set()
        for detail in error.errors(include_url=False):
            name = str(detail["loc"][0])
            wrong.add(name)
            problems.append(_problem(name, given[name], detail["loc"][1:], detail["msg"]))
        # Settings that are valid one by one may still contradict each other.
        rest = {name: value for name, value in values.items() if name not in wrong}
        configuration = Configuration.model_validate(rest)
        problems += _conflicts(configuration, wrong)
    else:
        problems += _conflicts(configuration, set())
    if problems:
        raise ConfigurationError(problems)
    return Effective(configuration, given)


def _from_file(file: Path, problems: list[str]) -> dict[str, GivenValue]:
    try:
        content = tomllib.loads(read_file(file, MAX_FILE_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        at = error.start + 1 if isinstance(error, UnicodeDecodeError) else 0
        problems.append(f"{file}: {f'byte {at} is not UTF-8; save the file as UTF-8' if at else error}")
        return {}
    problems += [f"{name} (file {file}): unknown; {_suggestion(name, str)}" for name in content if name not in NAMES]
    return {name: GivenValue(value, f"file {file}") for name, value in content.items() if name in NAMES}


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, GivenValue]:
    names = {variable(name): name for name in NAMES}
    given = {}
    for spelled, value in sorted(environment.items()):
        if not spelled.startswith(PREFIX) or not value or spelled in OTHER_VARIABLES or _IGNORED.match(spelled):
            continue
        name = names.get(spelled)
        if name is None:
            suggestion = _suggestion(spelled.removeprefix(PREFIX).lower(), variable)
            problems.append(f"{spelled} (environment): unknown; {suggestion}")
        elif not (name == "port" and _LINK.match(value)):
            given[name] = GivenValue(value.split(os.pathsep) if name == "bundles" else value, f"environment {spelled}")
    return given


def _flag_origin(name: str) -> str:
    return "argument BUNDLE" if name == "bundles" else f"flag {flag(name)}"


def _suggestion(name: str, spelled: Callable[[str], str]) -> str:
    """Suggest the nearest setting to an unknown name, in its spelling."""
    near = difflib.get_close_matches(name, NAMES, n=1)
    return f"the nearest known name is {spelled(near[0])}" if near else "'jumok serve --help' has all settings"


def _problem(name: str, given: GivenValue, path: Sequence[int | str], message: str) -> str:
    """Describe a wrong setting, or its wrong element."""
    said = _SAID.get(message) or message.removeprefix("Value error, ").removeprefix("Input ")
    several = isinstance(given.value, list | tuple) and path and isinstance(path[0], int)
    value = given.value[path[0]] if several else given.value
    if name == "tokens" and message == _NO_FILE:
        said += f"; make one with 'jumok token NAME --file {value}'"
    return f"{name} = {value!r} ({given.origin}): {said}"


def _conflicts(configuration: Configuration, wrong: set[str]) -> list[str]:
    """List contradictions between settings that are valid alone."""

    def has(name: str) -> bool:
        value = getattr(configuration, name)
        return name in wrong or (value is not None and value is not False)

    conflicts = []
    if "bundles" not in wrong and not configuration.bundles and not has("model_root"):
        conflicts.append(
            f"bundles: none is given; name bundles as arguments, in the file or in {variable('bundles')}, or set "
            "model_root"
        )
    for name, needed in (
        ("tls_certificate", "tls_key"),
        ("tls_key", "tls_certificate"),
        ("tls_client_ca", "tls_certificate"),
        ("log_texts", "log_requests"),
        ("request_burst", "requests_per_second"),
        ("admin_port", "model_root"),
        ("http_origins", "http_port"),
        ("http_hosts", "http_port"),
    ):
        if has(name) and not has(needed):
            conflicts.append(f"{name}: needs {needed} too")
    if has("tokens") and not has("tls_certificate") and not has("tokens_without_tls"):
        conflicts.append(
            "tokens: without TLS they can be read on the network; set tls_certificate and tls_key, or set "
            "tokens_without_tls if a proxy in front of this server has TLS"
        )
    addresses: dict[tuple[str, int], str] = {}
    for name, host, port in configuration.addresses():
        if port and name not in wrong:
            first = addresses.setdefault((host, port), name)
            if first != name:
                conflicts.append(f"{name}: {port} is also {first}; give each its own port")
    return conflicts
