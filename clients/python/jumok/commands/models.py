"""``jumok models``: list a server's models and routes."""

import click

from jumok.commands._options import open_client, server_options, timeout_option
from jumok.commands._output import write_columns


@click.command()
@server_options
@timeout_option(5.0, "Seconds that each answer may take.")
@click.pass_context
def models(context: click.Context, *, server: str, timeout_s: float) -> None:
    """List the pairs of languages that a server translates: source, target and model.

    Two models in a line translate one after the other. A model that translates each of its source languages into each
    of its target languages has one line, with commas.
    """
    with open_client(context, server, timeout_s) as client:
        for model in client.list_models():
            pairs = [(pair.source, pair.target) for pair in model.language_pairs]
            for source, target in pairs or [(",".join(model.source_languages), ",".join(model.target_languages))]:
                write_columns(source, target, model.name)
        for route in client.list_routes():
            write_columns(route.source, route.target, " ".join(route.models))
