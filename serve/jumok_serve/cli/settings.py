"""Settings of a server: types, defaults and checks, read from file, environment and flags.

Every setting has one name: ``max_queue_tokens`` in the file, ``JUMOK_MAX_QUEUE_TOKENS`` in the environment, and
``--max-queue-tokens`` as a flag. Flags override the environment, the environment the file, and the file the defaults.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    DirectoryPath,
    Field,
    FilePath,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)

from jumok_serve.cache import CACHE_VARIABLE, EXAMPLE, HubName, parse_hub_name
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.errors import ConfigurationError
from jumok_serve.files import read_file
from jumok_serve.runtime.device import Arena, DeviceName
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.text.files.document import MAX_READ


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


NO_PIVOT = "none"
"""Value of `Configuration.pivot` for no pivot."""
TAG = r"^[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*$"
"""Pattern of a language tag."""
WEB = "^https?://"
"""Pattern of a web address."""

_ENGINE = EngineLimits()
_SERVICE = ServiceLimits()


class Configuration(BaseModel):
    """All settings of a server; the descriptions are the flags' help."""

    # Pydantic 2.9 warns of names that begin with "model_", as model_root does.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    bundles: tuple[BundleSource, ...] = Field(
        (),
        description="Bundles or folders of bundles to serve, or names of models on the Hugging Face Hub, such as "
        f"{EXAMPLE}.",
    )
    host: str = Field(
        "127.0.0.1",
        description="Address to listen on; 0.0.0.0: all IPv4 addresses; [::]: all addresses; unix:PATH: a Unix socket.",
    )
    port: Port = Field(50051, description="Port to listen on; 0: any free port.")
    grace_s: Annotated[Number, Field(ge=0)] = Field(
        30.0, description="Seconds for running calls to finish after SIGTERM or Ctrl-C."
    )

    device: DeviceName = Field("cpu", description="Device to run on; auto: CUDA if available, else the CPU.")
    precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        "auto", description="Precision to run; auto: int8 on a CPU and fp16 on CUDA, if the bundle has them."
    )
    gpu_mem_limit_mib: Positive | None = Field(
        None,
        description="GPU memory in MiB that each graph of a model may compute in.  [default: no limit]",
    )
    gpu_arena: Arena = Field(
        "power_of_two", description="Growth of that memory: to the next power of two, or by the exact size."
    )
    gpu_allow_copies: bool = Field(
        False, description="Run operators that CUDA lacks on the CPU, with a warning, instead of refusing the model."
    )
    replicas: Positive | None = Field(
        None,
        description="Batches that a model decodes in parallel, from one queue.  [default: one; on a CPU, for int8 and "
        "for small fp32 models, one per core, at most four]",
    )
    threads: Positive | None = Field(
        None, description="CPU threads of each replica.  [default: all cores, divided among the replicas]"
    )
    shortlist: bool = Field(
        False, description="Restrict translations to the bundle's shortlist: faster, and a few translations change."
    )

    pivot: str = Field(
        "en",
        pattern=TAG,
        description=f"Language over which two models translate a pair that no model has; {NO_PIVOT}: refuse it.",
    )

    glossaries: Path | None = Field(
        None,
        description="Folder that callers' stored glossaries are kept in; made if it does not exist.  [default: none]",
    )

    private_copies: bool = Field(
        False,
        description="Serve from private copies of the bundles in the temporary folder, so that their files may be "
        "overwritten.",
    )
    trusted_bundles: bool = Field(
        False, description="Open bundles without trying them in a process of their own first: for bundles of your own."
    )

    max_batch_tokens: Positive = Field(
        _ENGINE.max_batch_tokens,
        description="Limit of a batch: source tokens, padding included, times beam size.",
    )
    max_queue_requests: Positive = Field(_ENGINE.max_queue_requests, description="Limit of a model's queue, in texts.")
    max_queue_tokens: Positive = Field(
        _ENGINE.max_queue_tokens, description="Limit of a model's queue, in source tokens."
    )
    max_queue_bytes: Positive = Field(
        _ENGINE.max_queue_bytes, description="Limit of a model's queue, in bytes of memory."
    )
    max_queue_work: Positive = Field(
        _ENGINE.max_queue_work, description="Limit of a model's queue, in estimated row steps."
    )
    max_request_work: Positive = Field(
        _ENGINE.max_request_work, description="Most row steps of a request: sentences times rows times max_length."
    )
    work_per_second: Positive | None = Field(
        None,
        description="Most estimated row steps per second of a token, or of a client address without tokens, for each "
        "model; what a text did not need is given back.  [default: no limit]",
    )
    work_burst: Positive | None = Field(
        None, description="Most estimated row steps at once after a pause.  [default: those of one second]"
    )
    max_message_bytes: Annotated[Positive, Field(lt=2**31)] = Field(
        _SERVICE.max_message_bytes, description="Largest request, in bytes."
    )
    max_file_bytes: Positive = Field(_SERVICE.max_file_bytes, description="Largest file, in bytes.")
    max_texts: Positive = Field(_SERVICE.max_texts, description="Most texts of a request.")
    max_characters: Annotated[Positive, Field(le=MAX_READ)] = Field(
        _SERVICE.max_characters,
        description=f"Longest text or target, in characters; at most {MAX_READ}. Truncation does not raise it.",
    )
    max_hypotheses: Positive = Field(
        _SERVICE.max_hypotheses, description="Most hypotheses of a request, all texts together."
    )
    max_beam_hypotheses: Positive = Field(
        _SERVICE.max_beam_hypotheses, description="Most hypotheses of a text times beam size."
    )
    max_streams: Annotated[Positive, Field(lt=2**31)] = Field(
        _SERVICE.max_streams, description="Most open calls of a connection; further calls wait at the client."
    )
    max_open_bytes: Positive = Field(
        _SERVICE.max_open_bytes,
        description="Most bytes of requests that are read or answered, of all connections; a caller has at most half. "
        "Further requests wait unread.",
    )
    max_calls: Positive = Field(_SERVICE.max_calls, description="Most open calls of all connections, besides corpora.")
    max_calls_of_caller: Positive = Field(
        _SERVICE.max_calls_of_caller, description="Most open calls of a token, or of a client address without tokens."
    )
    max_corpora: Positive = Field(_SERVICE.max_corpora, description="Most open corpora; a caller has at most half.")
    max_watches: Positive = Field(
        _SERVICE.max_watches,
        description="Most open health watches and reflections, and as many health checks; a caller has at most half.",
    )
    max_connections: Annotated[Positive, Field(lt=2**31)] = Field(
        _SERVICE.max_connections, description="Most connections of a port; further ones are closed."
    )
    max_connections_of_address: Positive = Field(
        _SERVICE.max_connections_of_address,
        description="Most connections of a client address to a port; further ones are closed.",
    )
    upload_s: Seconds = Field(
        _SERVICE.upload_s,
        description="Seconds for a request to arrive, and to read a response; files have it several times.",
    )
    silence_s: Seconds = Field(_SERVICE.silence_s, description="Most seconds between two messages of a corpus.")
    wrong_tokens_per_second: Annotated[Number, Field(gt=0)] = Field(
        _SERVICE.wrong_tokens_per_second,
        description="Calls per second of an address without a right token, before they are told to wait.",
    )
    min_ping_interval_s: Seconds = Field(
        _SERVICE.min_ping_interval_s,
        description="Shortest time between two pings of a client, in seconds; more pings end the connection.",
    )
    keepalive_s: Seconds = Field(
        _SERVICE.keepalive_s, description="Silence of a connection in seconds before the server pings the client."
    )
    keepalive_timeout_s: Seconds = Field(
        _SERVICE.keepalive_timeout_s, description="Seconds for the answer to that ping; then the connection is closed."
    )
    max_idle_s: Seconds = Field(
        _SERVICE.max_idle_s, description="Seconds after which a connection without calls is closed."
    )
    max_connection_age_s: Seconds | None = Field(
        None,
        description="Age in seconds at which a connection takes no more calls, so that clients connect again, and a "
        "new server gets its share.  [default: no limit]",
    )
    max_connection_grace_s: Seconds = Field(
        _SERVICE.max_connection_grace_s, description="Seconds for the calls of such a connection to end."
    )
    requests_per_second: Annotated[Number, Field(gt=0)] | None = Field(
        None,
        description="Most calls per second of a token, or of a client address without tokens.  [default: no limit]",
    )
    request_burst: Positive | None = Field(
        None, description="Most calls at once after a pause.  [default: the calls of one second, at least 1]"
    )

    tls_certificate: FilePath | None = Field(
        None, description="PEM file of the certificate chain, for TLS; read again when it changes."
    )
    tls_key: FilePath | None = Field(None, description="PEM file of the certificate's private key, without a password.")
    tls_client_ca: FilePath | None = Field(
        None, description="PEM file of the authorities that must have signed clients' certificates (mutual TLS)."
    )
    tokens: FilePath | None = Field(
        None, description="File of lines from 'jumok token'; calls need one of them. Read again when it changes."
    )
    tokens_without_tls: bool = Field(
        False, description="Accept tokens without TLS, because a proxy in front of this server has TLS."
    )

    model_root: DirectoryPath | None = Field(
        None,
        description="Folder of bundles that callers with the scope admin may load and unload while the server runs; "
        "bundles are trusted, see SECURITY.md.  [default: none]",
    )
    admin_port: Port | None = Field(
        None, description="Separate port for these calls; 0: any free port.  [default: the port of all calls]"
    )
    admin_host: str = Field("127.0.0.1", description="Address of the admin port.")

    http_port: Port | None = Field(
        None,
        description="Port of the HTTP APIs, which need the extra 'http'; 0: any free port.  [default: no HTTP]",
    )
    http_host: str = Field("127.0.0.1", description="Address of the HTTP port; spelled as host.")
    http_timeout_s: Seconds = Field(300.0, description="Seconds for the response to an HTTP request once it is read.")
    http_origins: str | None = Field(
        None,
        description="Web pages that may call over HTTP: origins such as https://example.org, separated by commas; "
        "*: all.  [default: none]",
    )
    http_hosts: str | None = Field(
        None,
        description="Hosts that HTTP requests may name, separated by commas; *: any.  [default: any; without tokens on "
        "a loopback address, names of this machine]",
    )
    http_playground: bool = Field(True, description="Serve a web page to translate in at / of the HTTP port.")

    metrics_port: Port | None = Field(
        None, description="Port for Prometheus to scrape; 0: any free port.  [default: no metrics]"
    )
    metrics_host: str = Field("127.0.0.1", description="Address of the metrics port.")
    traces_endpoint: str | None = Field(
        None,
        pattern=WEB,
        description="OpenTelemetry collector for traces, such as http://localhost:4317.  [default: no traces]",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log format on standard error: text, or one JSON object per line."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level to log.")
    log_requests: bool = Field(False, description="Log a line when a call ends.")
    log_texts: bool = Field(False, description="Also log the texts of requests; needs log_requests.")

    def addresses(self) -> Iterator[tuple[str, str, int]]:
        """Yield setting, host and number of each port."""
        for name in ("port", "admin_port", "http_port", "metrics_port"):
            if (number := getattr(self, name)) is not None:
                yield name, getattr(self, name.replace("port", "host")), number


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
    for name, value in flags.items():
        if value not in (None, ()):
            given[name] = GivenValue(value, f"{'argument' if name == 'bundles' else 'flag'} {flag(name)}")
    values = {name: one.value for name, one in given.items()}
    wrong: set[str] = set()
    try:
        configuration = Configuration.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            name = str(detail["loc"][0])
            wrong.add(name)
            problems.append(_problem(name, given[name], detail["loc"][1:], detail["msg"]))
        # Settings that are valid one by one may still contradict each other.
        rest = {name: value for name, value in values.items() if name not in wrong}
        configuration = Configuration.model_validate(rest)
    problems += _conflicts(configuration, wrong)
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
