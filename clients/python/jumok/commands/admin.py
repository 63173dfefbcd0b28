"""``jumok admin``: load models into a running server and unload them."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from jumok._admin_client import AdminClient
from jumok._transport.servers import one_address
from jumok.commands._main import Group
from jumok.commands._options import access, await_server, server_options, timeout_option
from jumok.commands._output import write_columns
from jumok_proto.errors import UnimplementedError

with_timeout = timeout_option(600.0, "Seconds to wait for the answer; a model that is being loaded is loaded anyway.")


@click.group(cls=Group)
def admin() -> None:
    """Load models into a running server and unload them.

    Start the server with --model-root, the folder of its bundles. If it needs tokens, use one with the scope admin.
    """


@admin.command("list")
@server_options
@with_timeout
@click.pass_context
def list_bundles(context: click.Context, *, server: str, timeout_s: float) -> None:
    """List the bundles in the model root: folder, model, version and state."""
    with _client(context, server, timeout_s) as client:
        bundles = client.list_bundles()
    for bundle in bundles:
        described = f"{bundle.model} {bundle.version}".strip()
        problem = f": {' '.join(bundle.problem.split())}" if bundle.problem else ""
        write_columns(bundle.bundle, described, f"{bundle.state.value}{problem}")


@admin.command("load")
@click.argument("bundle")
@server_options
@with_timeout
@click.pass_context
def load_model(context: click.Context, *, bundle: str, server: str, timeout_s: float) -> None:
    """Load BUNDLE, a folder in the model root, and wait until it serves.

    It replaces a model of the same name, which finishes its accepted requests. If the bundle cannot be used, the
    command fails and the server keeps its models.
    """
    with _client(context, server, timeout_s) as client:
        loaded = client.load_model(bundle)
    model, replaced = loaded.model, loaded.replaced_version
    instead = "" if replaced is None else f", instead of {replaced}"
    write_columns(f"serving {model.name} {model.version} ({model.precision}, {model.device}){instead}")


@admin.command("unload")
@click.argument("model")
@server_options
@with_timeout
@click.pass_context
def unload_model(context: click.Context, *, model: str, server: str, timeout_s: float) -> None:
    """Unload MODEL after its accepted requests."""
    with _client(context, server, timeout_s) as client:
        unloaded = client.unload_model(model)
    write_columns(f"no longer serving {unloaded.name} {unloaded.version}")


@contextmanager
def _client(context: click.Context, server: str, timeout_s: float) -> Iterator[AdminClient]:
    tls, token = access(context)
    await_server(context, [one_address(server)])
    with AdminClient(server, tls=tls, token=token, timeout_s=timeout_s) as client:
        try:
            yield client
        except UnimplementedError as error:
            raise click.ClickException(
                f"{server} does not load models: start it with --model-root, or use the port of its --admin-port"
            ) from error
