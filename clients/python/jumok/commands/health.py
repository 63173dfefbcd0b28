"""``jumok health``: check servers, for people and for probes of containers."""

import click
import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from jumok._errors import call_error
from jumok._transport.servers import Opener, addresses
from jumok.commands._options import access, await_server, server_options, timeout_option
from jumok_proto.errors import JumokError
from jumok_proto.v1.model_pb2 import ListModelsRequest, ModelState
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub

MODEL_SERVICE = "models/"
"""Prefix of a model's name in the health service."""


@click.command()
@server_options
@click.option("--model", help="Check this model instead of the whole server.")
@timeout_option(5.0, "Seconds that each answer may take.")
@click.pass_context
def health(context: click.Context, *, server: str, model: str | None, timeout_s: float) -> None:
    """Check that every server serves: exit with 0, or with 1 and a reason.

    Uses the standard health service, grpc.health.v1, and needs no token. For an unknown model, lists those available.
    """
    opener = Opener(*access(context))
    failed = False
    for address in addresses(server):
        subject = f"model {model!r} at {address}" if model else f"the server at {address}"
        try:
            await_server(context, [address])
            _check(opener, address, model, subject, timeout_s)
        except (click.ClickException, JumokError) as error:
            failed = True
            click.echo(f"Error: {error}", err=True)
        else:
            click.echo(f"{subject} is serving")
    if failed:
        context.exit(1)


def _check(opener: Opener, server: str, model: str | None, subject: str, timeout_s: float) -> None:
    """Raise the reason why a server or a model does not serve."""
    request = HealthCheckRequest(service=f"{MODEL_SERVICE}{model}" if model else "")
    with opener.channel(server) as channel:
        try:
            status = HealthStub(channel).Check(request, timeout=timeout_s).status
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise click.ClickException(f"{subject} is not known there{_available(channel, timeout_s)}") from None
            raise call_error(error, server, tls=opener.tls) from None
    if status != HealthCheckResponse.SERVING:
        raise click.ClickException(f"{subject} is not serving: {HealthCheckResponse.ServingStatus.Name(status)}")


def _available(channel: grpc.Channel, timeout_s: float) -> str:
    """List the models; a server that needs a token does not tell callers without one."""
    try:
        response = ModelServiceStub(channel).ListModels(ListModelsRequest(), timeout=timeout_s)
    except grpc.RpcError:
        return ""
    names = [model.name for model in response.models if model.state != ModelState.MODEL_STATE_DRAINING]
    return f"; available: {', '.join(names) or 'none'}"
