"""``jumok admin``: which models a server holds, for whoever looks after it."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from jumok._admin_client import AdminClient
from jumok.commands._options import access, server_options
from jumok_proto.errors import UnimplementedError

timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that the answer may take; a model that is being loaded then is loaded all the same.",
)


@click.group()
def admin() -> None:
    """Load models into a server that runs, and take them out.

    The server must be started with --model-root, the folder of the bundles that it may load. Where it wants tokens,
    these commands need one with the scope admin.
    """


@admin.command("list")
@server_options
@timeout_option
@click.pass_context
def list_bundles(context: click.Context, *, server: str, timeout_s: float) -> None:
    """List the bundles in the model root: folder, model, version, and what the server is doing with it."""
    with _client(context, server, timeout_s) as client:
        bundles = client.list_bundles()
    for bundle in bundles:
        described = f"{bundle.model} {bundle.version}".strip()
        problem = f": {' '.join(bundle.problem.split())}" if bundle.problem else ""
        line = f"{bundle.bundle}\t{described}\t{bundle.state.value}{problem}"
        # A bundle may come from anyone: no escape sequence of its texts reaches the terminal.
        click.echo("".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in line))


@admin.command("load")
@click.argument("bundle")
@server_options
@timeout_option
@click.pass_context
def load_model(context: click.Context, *, bundle: str, server: str, timeout_s: float) -> None:
    """Load BUNDLE, a folder in the model root, and wait until it serves.

    A model of the same name is replaced: requests that it has accepted are finished by it. If the bundle cannot be
    used, the command fails and the server goes on with what it had.
    """
    with _client(context, server, timeout_s) as client:
        loaded = client.load_model(bundle)
    model, replaced = loaded.model, loaded.replaced_version
    instead = "" if replaced is None else f", instead of {replaced}"
    click.echo(f"serving {model.name} {model.version} ({model.precision}, {model.device}){instead}")


@admin.command("unload")
@click.argument("model")
@server_options
@timeout_option
@click.pass_context
def unload_model(context: click.Context, *, model: str, server: str, timeout_s: float) -> None:
    """Take MODEL out of the server; requests that it has accepted are finished."""
    with _client(context, server, timeout_s) as client:
        unloaded = client.unload_model(model)
    click.echo(f"no longer serving {unloaded.name} {unloaded.version}")


@contextmanager
def _client(context: click.Context, server: str, timeout_s: float) -> Iterator[AdminClient]:
    tls, token = access(context)
    with AdminClient(server, tls=tls, token=token, timeout_s=timeout_s) as client:
        try:
            yield client
        except UnimplementedError as error:
            raise click.ClickException(
                f"{server} does not load models: its server is to be started with --model-root, or has another port "
                "for this, --admin-port"
            ) from error
