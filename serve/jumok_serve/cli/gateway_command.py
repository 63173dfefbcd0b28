"""The command ``jumok gateway``: the HTTP APIs in front of servers elsewhere."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import grpc

from jumok_serve.cli.settings import listed
from jumok_serve.service.auth.tls import TlsFiles
from jumok_serve.service.auth.tokens import read_file
from jumok_serve.service.connections import allow_connections
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.interceptor import UnreadResponses
from jumok_serve.service.rpc.request_reader import make_intake
from jumok_serve.service.stop_signals import end_after, received_signals, serve_until_stopped, stop_before_serving
from jumok_serve.service.telemetry.logs import logging_to_stderr

PEM = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--server",
    "servers",
    metavar="HOST:PORT,...",
    envvar="JUMOK_SERVER",
    show_envvar=True,
    required=True,
    help="Servers of the same models, separated by commas.",
)
@click.option("--tls-ca", type=PEM, help="Root certificates to check the servers' certificates with, in PEM.")
@click.option(
    "--token",
    envvar="JUMOK_TOKEN",
    show_envvar=True,
    default="",
    help="Token to list languages with, if a client has none.",
)
@click.option("--needs-token", is_flag=True, help="Tell clients that the servers need tokens.")
@click.option("--http-host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http-port", default=8080, show_default=True, help="Port to listen on; 0: any free port.")
@click.option("--http-timeout", default=300.0, show_default=True, help="Seconds for the response to a request.")
@click.option("--http-origins", default="", help="Web pages that may call, separated by commas; *: all.")
@click.option("--http-hosts", default="", help="Hosts that requests may name, separated by commas; *: any.")
@click.option("--http-playground/--no-http-playground", default=True, show_default=True, help="Serve a web page at /.")
@click.option("--tls-certificate", type=PEM, help="PEM file of the certificate chain of this port.")
@click.option("--tls-key", type=PEM, help="PEM file of the certificate's private key.")
@click.option("--grace", default=30.0, show_default=True, help="Seconds for running requests after SIGTERM or Ctrl-C.")
def gateway(
    *,
    servers: str,
    tls_ca: Path | None,
    token: str,
    needs_token: bool,
    http_host: str,
    http_port: int,
    http_timeout: float,
    http_origins: str,
    http_hosts: str,
    http_playground: bool,
    tls_certificate: Path | None,
    tls_key: Path | None,
    grace: float,
) -> None:
    """Serve the HTTP APIs of 'jumok serve --http-port' in front of servers elsewhere, until SIGTERM or Ctrl-C.

    Calls take turns among the servers; if one is unavailable, the next gets the call. Clients' keys are tokens of the
    servers.
    """
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key need each other: give both, or neither")
    if token and tls_ca is None:
        raise click.UsageError("the token of --token or JUMOK_TOKEN is sent over TLS only: add --tls-ca")
    from jumok_serve.http.port import Application, HttpPort  # noqa: PLC0415 - needs the extra `http`
    from jumok_serve.http.site import Site  # noqa: PLC0415
    from jumok_serve.http.stub_backend import StubBackend  # noqa: PLC0415

    limits = ServiceLimits()
    tls = TlsFiles(certificate=tls_certificate, key=tls_key) if tls_certificate and tls_key else None
    credentials = None if tls_ca is None else grpc.ssl_channel_credentials(read_file(tls_ca))

    async def run() -> None:
        channels = [_channel(address, credentials) for address in listed(servers)]
        async with StubBackend(channels, token=token, needs_token=needs_token) as backend:
            site = Site(
                backend=backend,
                limits=limits,
                intake=make_intake(limits),
                unread=UnreadResponses(limits),
                timeout_s=http_timeout,
            )
            application = Application(site, listed(http_origins), hosts=listed(http_hosts), playground=http_playground)
            allow_connections(limits, ports=1)
            port = HttpPort(application, host=http_host, port=http_port, tls=tls)

            @contextmanager
            def announced() -> Iterator[None]:
                click.echo(f"serving HTTP on {port.address}")
                yield

            with received_signals() as signals:
                await serve_until_stopped(port, signals, grace, announced, on_stop=partial(end_after, grace))

    signal.signal(signal.SIGTERM, stop_before_serving)
    with logging_to_stderr(log_format="text", level="info"):
        asyncio.run(run())


def _channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    options = [("grpc.max_receive_message_length", -1)]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, credentials, options)
