"""``jumok health``: check a server, for people and for probes of containers."""

import click
import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from jumok._errors import call_error
from jumok._transport.channel import open_channel
from jumok.commands._options import access, server_options, timeout_option
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
    """Check that a server serves: exit with 0, or with 1 and a reason.

    Uses the standard health service, grpc.health.v1, and needs no token. For an unknown model, lists those available.
    """
    tls, token = access(context)
    subject = f"model {model!r} at {server}" if model else f"the server at {server}"
    request = HealthCheckRequest(service=f"{MODEL_SERVICE}{model}" if model else "")
    with open_channel(server, tls=tls, token=token) as channel:
        try:
            status = HealthStub(channel).Check(request, timeout=timeout_s).status
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise click.ClickException(f"{subject} is not known there{_available(channel, timeout_s)}") from error
            raise call_error(error, server) from error
    if status != HealthCheckResponse.SERVING:
        raise click.ClickException(f"{subject} is not serving: {HealthCheckResponse.ServingStatus.Name(status)}")
    click.echo(f"{subject} is serving")


def _available(channel: grpc.Channel, timeout_s: float) -> str:
    """List the models; a server that needs a token does not tell callers without one."""
    try:
        response = ModelServiceStub(channel).ListModels(ListModelsRequest(), timeout=timeout_s)
    except grpc.RpcError:
        return ""
    names = [model.name for model in response.models if model.state != ModelState.MODEL_STATE_DRAINING]
    return f"; available: {', '.join(names) or 'none'}"
