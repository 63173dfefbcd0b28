"""How a server is configured: one schema for the file, the environment and the flags of ``jumok serve``.

Every setting has one name: ``max_queue_tokens`` in the file, ``JUMOK_MAX_QUEUE_TOKENS`` in the environment, and
``--max-queue-tokens`` as a flag. A flag wins over the environment, that over the file, and that over the default.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, DirectoryPath, Field, FilePath, ValidationError

from jumok_serve.engine.limits import EngineLimits
from jumok_serve.errors import ConfigurationError
from jumok_serve.service.limits import ServiceLimits

PREFIX = "JUMOK_"
CONFIGURATION_FILE = "JUMOK_CONFIG"
OTHER_VARIABLES = {CONFIGURATION_FILE, "JUMOK_SERVER", "JUMOK_TOKEN", "JUMOK_NATIVE", "JUMOK_MULTI30K"}
"""That are no settings of a server: where its file is, what clients and installations read, and where tests find their
corpus."""
_NOT_OURS = re.compile(r"JUMOK_(TEST_|SERVICE_HOST$|SERVICE_PORT|PORT_\d+_)")
"""Tests' own variables, and those that Kubernetes gives to every container beside a Service named ``jumok``."""
_LINK = re.compile(r"\w+://")
"""What Kubernetes says in JUMOK_PORT then."""

_ENGINE = EngineLimits()
_SERVICE = ServiceLimits()


def _no_flag(value: object) -> object:
    """Refuse true and false where a number is wanted: to Python they are 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


Whole = Annotated[int, BeforeValidator(_no_flag)]
Positive = Annotated[Whole, Field(ge=1)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
Number = Annotated[float, BeforeValidator(_no_flag), Field(allow_inf_nan=False)]


class Configuration(BaseModel):
    """All settings of a server; the descriptions are the help of the flags."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundles: tuple[DirectoryPath, ...] = Field((), description="Bundles to serve.")
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 is all of IPv4.")
    port: Port = Field(50051, description="Port to listen on; 0 is any free.")
    grace_s: Annotated[Number, Field(ge=0)] = Field(
        30.0, description="Seconds that running calls have to finish after SIGTERM or Ctrl-C."
    )

    device: Literal["cpu", "cuda", "auto"] = Field(
        "cpu", description="Where to run; auto takes CUDA where there is one, cuda fails where there is none."
    )
    precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        "auto", description="Which of the bundle's precisions to run; auto takes what suits the device best."
    )
    gpu_mem_limit_mib: Positive | None = Field(
        None,
        description="MiB of the GPU that each of a model's graphs may take to compute in.  [default: what there is]",
    )
    gpu_arena: Literal["power_of_two", "exact"] = Field(
        "power_of_two", description="How that memory grows: to the next power of two, or by what is asked for."
    )
    gpu_allow_copies: bool = Field(
        False, description="Warn of operators that CUDA does not have and that run on the CPU, instead of refusing."
    )
    replicas: Positive | None = Field(
        None,
        description="Batches that a model decodes at the same time, from one queue.  [default: one; on a CPU up to "
        "four, one a core, for int8 and for small models in fp32]",
    )
    threads: Positive | None = Field(None, description="CPU threads of each replica.  [default: what the cores allow]")
    shortlist: bool = Field(
        False, description="Write only tokens of the bundle's shortlist: faster, and a few translations change."
    )

    max_batch_tokens: Positive = Field(
        _ENGINE.max_batch_tokens,
        description="Source tokens, padding included, times beam size, that a model decodes at once.",
    )
    max_queue_requests: Positive = Field(_ENGINE.max_queue_requests, description="Texts that may wait for a model.")
    max_queue_tokens: Positive = Field(
        _ENGINE.max_queue_tokens, description="Source tokens of the texts that may wait."
    )
    max_message_bytes: Annotated[Positive, Field(lt=2**31)] = Field(
        _SERVICE.max_message_bytes, description="Bytes of a request."
    )
    max_texts: Positive = Field(_SERVICE.max_texts, description="Texts of a request.")
    max_characters: Positive = Field(
        _SERVICE.max_characters, description="Characters of a text, to be truncated or not, or of a target."
    )
    max_hypotheses: Positive = Field(
        _SERVICE.max_hypotheses, description="Hypotheses of all texts of a request together."
    )
    max_beam_hypotheses: Positive = Field(
        _SERVICE.max_beam_hypotheses, description="Beam size times hypotheses of a text."
    )
    max_streams: Annotated[Positive, Field(lt=2**31)] = Field(
        _SERVICE.max_streams, description="Calls that one connection may have open; its others wait at the client."
    )
    max_calls: Positive = Field(_SERVICE.max_calls, description="Calls that may be open on all connections together.")
    requests_per_second: Annotated[Number, Field(gt=0)] | None = Field(
        None,
        description="Calls a second that each token, or without tokens each client address, may make in the long run.  "
        "[default: no bound]",
    )
    request_burst: Positive | None = Field(
        None, description="Calls that it may make at once after a rest.  [default: those of one second, at least 1]"
    )

    tls_certificate: FilePath | None = Field(
        None, description="Certificate chain in PEM, to serve over TLS; read again when it changes."
    )
    tls_key: FilePath | None = Field(None, description="Private key of the certificate, in PEM, without a password.")
    tls_client_ca: FilePath | None = Field(
        None, description="Certificates in PEM that clients' certificates must be signed by: mutual TLS."
    )
    tokens: FilePath | None = Field(
        None, description="Lines of 'jumok token': calls need one of these tokens; read again when it changes."
    )
    tokens_without_tls: bool = Field(
        False, description="Take tokens though this server has no TLS, because what is in front of it has."
    )

    model_root: DirectoryPath | None = Field(
        None,
        description="Folder whose bundles callers with the scope admin may load and unload while the server runs.  "
        "[default: none, and no such calls]",
    )
    admin_port: Port | None = Field(
        None, description="Port for these calls alone; 0 is any free.  [default: that of the others]"
    )
    admin_host: str = Field("127.0.0.1", description="Address of that port.")

    metrics_port: Port | None = Field(
        None, description="Port for Prometheus to scrape; 0 is any free.  [default: no metrics]"
    )
    metrics_host: str = Field("127.0.0.1", description="Address of that port.")
    traces_endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="OpenTelemetry collector to send traces to, such as http://localhost:4317.  [default: no traces]",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Lines for people, or one JSON object a line; on standard error."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severity to log.")
    log_requests: bool = Field(False, description="Log a line for every call when it ends.")
    log_texts: bool = Field(False, description="Log the texts of requests too; needs log_requests.")


NAMES = tuple(Configuration.model_fields)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """The flag of a setting."""
    return "BUNDLE" if name == "bundles" else f"--{name.removesuffix('_s').replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Given:
    """What somebody said about a setting, and where."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Effective:
    """A configuration, and what of it is not a default."""

    configuration: Configuration
    given: Mapping[str, Given]

    def toml(self) -> str:
        """All settings as a file that gives the same configuration; those without a value are left out."""
        lines = []
        for name, value in self.configuration.model_dump(mode="json").items():
            if value is not None:
                written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
                lines.append(f"{name} = {written}  # {self.given[name].origin if name in self.given else 'default'}")
        return "\n".join(lines) + "\n"


def read_configuration(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Effective:
    """Put together what file, environment and flags say; a flag that was not given is None.

    Raises:
        ConfigurationError: something of it is wrong or unknown; lists all.
    """
    problems: list[str] = []
    given: dict[str, Given] = {}
    if file is not None:
        given |= _from_file(file, problems)
    given |= _from_environment(environment, problems)
    given |= {
        name: Given(value, _flag_origin(name)) for name, value in flags.items() if value is not None and value != ()
    }
    values = {name: one.value for name, one in given.items()}
    try:
        configuration = Configuration.model_validate(values)
    except ValidationError as error:
        wrong = set()
        for detail in error.errors(include_url=False):
            name = str(detail["loc"][0])
            wrong.add(name)
            problems.append(_problem(name, given[name], detail["loc"][1:], detail["msg"]))
        # What is right by itself may still not go together.
        rest = {name: value for name, value in values.items() if name not in wrong}
        configuration = Configuration.model_validate(rest)
        problems += _conflicts(configuration, wrong)
    else:
        problems += _conflicts(configuration, set())
    if problems:
        raise ConfigurationError(problems)
    return Effective(configuration, given)


def _from_file(file: Path, problems: list[str]) -> dict[str, Given]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(f"{file}: {error}")
        return {}
    problems += [f"{name} (file {file}): unknown; {_meant(name, str)}" for name in content if name not in NAMES]
    return {name: Given(value, f"file {file}") for name, value in content.items() if name in NAMES}


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, Given]:
    names = {variable(name): name for name in NAMES}
    given = {}
    for spelled, value in sorted(environment.items()):
        if not spelled.startswith(PREFIX) or not value or spelled in OTHER_VARIABLES or _NOT_OURS.match(spelled):
            continue
        name = names.get(spelled)
        if name is None:
            meant = _meant(spelled.removeprefix(PREFIX).lower(), variable)
            problems.append(f"{spelled} (environment): unknown; {meant}")
        elif not (name == "port" and _LINK.match(value)):
            given[name] = Given(value.split(os.pathsep) if name == "bundles" else value, f"environment {spelled}")
    return given


def _flag_origin(name: str) -> str:
    return "argument BUNDLE" if name == "bundles" else f"flag {flag(name)}"


def _meant(name: str, spelled: Callable[[str], str]) -> str:
    """Say which setting a name that is none may be meant for, as it is spelled there."""
    near = difflib.get_close_matches(name, NAMES, n=1)
    return f"the nearest known name is {spelled(near[0])}" if near else "'jumok serve --help' has all settings"


def _problem(name: str, given: Given, place: Sequence[int | str], message: str) -> str:
    """Say what is wrong with a setting, or of several values with the one in this place."""
    said = message.removeprefix("Value error, ").removeprefix("Input ")
    several = isinstance(given.value, list | tuple) and place and isinstance(place[0], int)
    value = given.value[place[0]] if several else given.value
    return f"{name} = {value!r} ({given.origin}): {said}"


def _conflicts(configuration: Configuration, wrong: set[str]) -> list[str]:
    """What does not go together; nothing is said of settings that are wrong by themselves."""

    def has(name: str) -> bool:
        value = getattr(configuration, name)
        return name in wrong or (value is not None and value is not False)

    conflicts = []
    if "bundles" not in wrong and not configuration.bundles and not has("model_root"):
        conflicts.append(
            f"bundles: none is given; give some as arguments, in the file, or as {variable('bundles')}, or give a "
            "model_root to load them from"
        )
    for name, needed in (
        ("tls_certificate", "tls_key"),
        ("tls_key", "tls_certificate"),
        ("tls_client_ca", "tls_certificate"),
        ("log_texts", "log_requests"),
        ("request_burst", "requests_per_second"),
        ("admin_port", "model_root"),
    ):
        if has(name) and not has(needed):
            conflicts.append(f"{name}: needs {needed} too")
    if has("tokens") and not has("tls_certificate") and not has("tokens_without_tls"):
        conflicts.append(
            "tokens: without TLS anybody on the way can read them; give tls_certificate and tls_key, or set "
            "tokens_without_tls where something in front of this server has TLS"
        )
    addresses: dict[tuple[str, int], str] = {}
    for name, host in (("port", "host"), ("admin_port", "admin_host"), ("metrics_port", "metrics_host")):
        port = getattr(configuration, name)
        if port and name not in wrong:
            first = addresses.setdefault((getattr(configuration, host), port), name)
            if first != name:
                conflicts.append(f"{name}: {port} is {first} too; give each its own")
    return conflicts
