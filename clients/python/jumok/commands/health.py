"""``jumok health``: whether a server serves, for people and for what restarts containers."""

import click
import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from jumok._errors import call_error
from jumok._transport.channel import open_channel
from jumok.commands._options import access, server_options
from jumok_proto.v1.model_pb2 import ListModelsRequest, ModelState
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub

MODEL_SERVICE = "models/"
"""What the server's health service calls a model: this, and its name."""


@click.command()
@server_options
@click.option("--model", help="Ask for this model instead of the whole server.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds that each answer may take.",
)
@click.pass_context
def health(context: click.Context, *, server: str, model: str | None, timeout_s: float) -> None:
    """Ask a server whether it serves; exit with 0 where it does, and with 1 and a reason where not.

    Needs no token, and asks the standard health service, grpc.health.v1; for a model that is not known there, also
    which there are.
    """
    tls, token = access(context)
    what = f"model {model!r} at {server}" if model else f"the server at {server}"
    request = HealthCheckRequest(service=f"{MODEL_SERVICE}{model}" if model else "")
    with open_channel(server, tls=tls, token=token) as channel:
        try:
            status = HealthStub(channel).Check(request, timeout=timeout_s).status
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise click.ClickException(f"{what} is not known there{_available(channel, timeout_s)}") from error
            raise call_error(error, server) from error
    if status != HealthCheckResponse.SERVING:
        raise click.ClickException(f"{what} is not serving: {HealthCheckResponse.ServingStatus.Name(status)}")
    click.echo(f"{what} is serving")


def _available(channel: grpc.Channel, timeout_s: float) -> str:
    """Which models there are, where the server says it: without a token, which health does not need, it may not."""
    try:
        response = ModelServiceStub(channel).ListModels(ListModelsRequest(), timeout=timeout_s)
    except grpc.RpcError:
        return ""
    names = [model.name for model in response.models if model.state != ModelState.MODEL_STATE_DRAINING]
    return f"; available: {', '.join(names) or 'none'}"
