"""The commands that run a server: ``jumok serve`` and ``jumok token``."""

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from jumok_serve.cli.loading import (
    make_checker,
    open_model,
    open_models,
    open_observers,
    service_arguments,
    tune_process,
)
from jumok_serve.cli.settings import CONFIGURATION_FILE, NAMES, Configuration, flag, listed, read_configuration
from jumok_serve.errors import ConfigurationError, CredentialsError
from jumok_serve.runtime.process_memory import freeze_objects, giving_back_free_memory
from jumok_serve.sandbox.checker import BundleChecker
from jumok_serve.service import Administration, Server, run_server
from jumok_serve.service.auth.tls import TlsFiles
from jumok_serve.service.auth.tokens import SCOPES, TokenFile, make_token
from jumok_serve.service.connections import check_address
from jumok_serve.service.server import Front
from jumok_serve.service.stop_signals import end_after, stop_before_serving
from jumok_serve.service.telemetry.logs import logging_to_stderr
from jumok_serve.translator import Translator


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every setting, validated with other settings."""
    for name in reversed(NAMES):
        command = _setting(name)(command)
    return command


def _setting(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    field = Configuration.model_fields[name]
    if name == "bundles":
        return click.argument("bundles", metavar="BUNDLE...", nargs=-1)
    help_text = field.description or ""
    if field.annotation is bool:
        spelled = f"{flag(name)}/--no-{flag(name).removeprefix('--')}"
        return click.option(
            spelled, name, default=None, help=f"{help_text}  [default: {'yes' if field.default else 'no'}]"
        )
    if field.default is not None:
        help_text += f"  [default: {field.default}]"
    return click.option(flag(name), name, metavar=_metavar(field.annotation), help=help_text)


def _metavar(annotation: Any) -> str:
    """Return the help's placeholder for values of a type: their choices or their kind."""
    kinds = {int: "N", float: "N", str: "TEXT", Path: "PATH"}
    if annotation in kinds:
        return kinds[annotation]
    arguments = get_args(annotation)
    if all(isinstance(argument, str) for argument in arguments):
        return "|".join(arguments)
    return _metavar(arguments[0])  # an optional or annotated type


@click.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=CONFIGURATION_FILE,
    show_envvar=True,
    help="TOML file of settings: the line max_texts = 100 means --max-texts 100.",
)
@click.option("--print-config", is_flag=True, help="Print the effective settings as a file for --config, and exit.")
@_settings
def serve(*, config: Path | None, print_config: bool, **flags: Any) -> None:
    """Serve BUNDLEs over gRPC until SIGTERM or Ctrl-C; running calls may finish.

    A BUNDLE is a folder, a folder of bundles, or the name of a model on the Hugging Face Hub, such as
    Helsinki-NLP/opus-mt-en-de. A named model is imported at the first start, which needs the extra 'import', and served
    from the cache ever after. Of several models of one pair of languages, the first named answers requests without a
    model's name.

    When the server is ready, it prints one line: its address, and each model's name, version, precision and device.

    Every setting can also be a line of the file or an environment variable: JUMOK_MAX_TEXTS means --max-texts. Flags
    override the environment, and the environment overrides the file.
    """
    try:
        effective = read_configuration(config, os.environ, flags)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    if print_config:
        click.echo(effective.toml(), nl=False)
        return
    settings = effective.configuration
    tune_process()
    with suppress(OSError, ValueError):  # standard error is no file
        faulthandler.enable()  # a crash in native code, as of overwritten weights, leaves lines on standard error
    # Needed until the server serves: without a handler, SIGTERM does not stop the first process of a container.
    signal.signal(signal.SIGTERM, stop_before_serving)
    with ExitStack() as opened:
        opened.enter_context(logging_to_stderr(log_format=settings.log_format, level=settings.log_level))
        checker = make_checker(settings)
        observers = open_observers(settings, opened)
        # Checked before the models are loaded, which takes longer.
        arguments = service_arguments(settings)
        tls = _tls(settings)
        make_front = _front(settings)
        for name, host, port in settings.addresses():
            check_address(host, port, flag(name))
        models: list[Translator] = []

        def make_server() -> Server:
            server = Server(
                models,
                host=settings.host,
                port=settings.port,
                tls=tls,
                observers=observers,
                administration=_administration(settings, checker),
                make_front=make_front,
                **arguments,
            )
            models.clear()  # another reference would keep an unloaded model in memory
            return server

        try:
            models += open_models(settings, checker)
            run_server(
                make_server,
                grace_s=settings.grace_s,
                on_start=partial(_announced, settings),
                on_stop=partial(end_after, settings.grace_s),
            )
        finally:
            for model in models:
                model.close(drain=False)


def _front(settings: Configuration) -> Callable[[Server], Front] | None:
    """Return the maker of the HTTP port, if there is one."""
    if settings.http_port is None:
        return None
    from jumok_serve.http.port import make_http_front  # noqa: PLC0415 - needs Starlette and uvicorn, an extra

    return partial(
        make_http_front,
        host=settings.http_host,
        port=settings.http_port,
        timeout_s=settings.http_timeout_s,
        origins=listed(settings.http_origins),
        hosts=listed(settings.http_hosts),
        playground=settings.http_playground,
    )


def _administration(settings: Configuration, checker: BundleChecker | None) -> Administration | None:
    if settings.model_root is None:
        return None
    administration = Administration(
        root=settings.model_root,
        load=partial(open_model, settings, checker),
        host=settings.admin_host,
        port=settings.admin_port,
    )
    if checker is None:
        return administration
    return replace(administration, check=checker.check, cancel_load=checker.close)


def _tls(settings: Configuration) -> TlsFiles | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    files = TlsFiles(certificate=settings.tls_certificate, key=settings.tls_key, client_ca=settings.tls_client_ca)
    files.credentials()
    return files


@contextmanager
def _announced(settings: Configuration, server: Server) -> Iterator[None]:
    """Open the metrics port while a server serves, and print the addresses and models."""
    with ExitStack() as opened:
        others = "" if server.admin_address is None else f"; administration on {server.admin_address}"
        if server.front is not None:
            others += f"; HTTP on {server.front.address}"
        if settings.metrics_port is not None:
            from jumok_serve.service.telemetry.metrics import MetricsPort  # noqa: PLC0415 - brings WSGI

            port = MetricsPort(server, host=settings.metrics_host, port=settings.metrics_port)
            others += f"; metrics on {opened.enter_context(port).address}"
        models = ", ".join(
            f"{model.manifest.name} {model.manifest.version} ({model.precision}, {model.device})"
            for model in server.models
        )
        freeze_objects()
        opened.enter_context(giving_back_free_memory())
        click.echo(f"serving on {server.address}: {models or 'no model yet'}{others}")
        yield


@click.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(sorted(SCOPES)),
    multiple=True,
    default=["translate"],
    show_default=True,
    help="Scope of the token; repeatable.",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to append the line to, instead of printing it.",
)
def token(*, name: str, scopes: tuple[str, ...], file: Path | None) -> None:
    """Make a bearer token for the caller NAME, and its line for the server's --tokens file.

    Prints the token, which is stored nowhere, and then the line, which holds only its hash.
    """
    try:
        secret, made = make_token(name, scopes)
    except CredentialsError as error:
        raise click.UsageError(str(error)) from error
    if file is None:
        click.echo(f"{secret}\n{made.line()}")
        return
    if not file.parent.is_dir():
        raise click.UsageError(f"--file {file}: the folder {file.parent} does not exist; create it, or choose another")
    if file.exists():
        TokenFile(file)  # refuses a file that is not usable
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if any(line.split()[:1] == [name] for line in before.splitlines()):
        raise click.ClickException(
            f"{file} already has a token named {name!r}: remove its line, or choose another name"
        )
    with open(file, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as stream:
        stream.write(f"{'' if not before or before.endswith(chr(10)) else chr(10)}{made.line()}\n")
    click.echo(secret)
