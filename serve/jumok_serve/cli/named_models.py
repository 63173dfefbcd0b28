"""Models by name: bundles in the cache, imported when they are missing."""

import logging
import subprocess
import sys
from pathlib import Path

import click

from jumok_serve import cache
from jumok_serve.bundle.model_root import ModelRoot
from jumok_serve.cache import HubName
from jumok_serve.manifest.parts import MANIFEST_FILE

logger = logging.getLogger(__name__)


def bundles_of(source: HubName | Path) -> list[Path]:
    """Return the folders of a bundle, of all bundles in a folder, or of a named model.

    A named model that is not in the cache is imported, in a child process.

    Raises:
        Exit: the import failed, and its process said why.
    """
    if isinstance(source, Path):
        inside = [] if (source / MANIFEST_FILE).exists() else ModelRoot(source).bundles()
        return [source / found.folder for found in inside] or [source]
    if not source.is_cached():
        logger.info("importing %s, once, into %s", source, source.bundle)
        # The child needs another extra, and returns its memory.
        child = subprocess.run(  # noqa: S603 - this program
            [sys.executable, "-m", "jumok", "import", f"hf:{source}"], stdout=subprocess.DEVNULL, check=False
        )
        if child.returncode != 0:
            raise click.exceptions.Exit(1)
    return [source.bundle]


@click.group(name="cache")
def cache_command() -> None:
    """List and remove the models that were imported by name."""


@cache_command.command(name="list")
def list_models() -> None:
    """Print each imported model with its size and folder."""
    names = list(cache.cached_models())
    if not names:
        click.echo("no model was imported by name yet", err=True)
    for name in names:
        click.echo(f"{name}\t{cache.bundle_size(name) / 1e6:.1f} MB\t{name.bundle}")


@cache_command.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove(*, names: tuple[str, ...]) -> None:
    """Remove imported models; running servers keep them until they end."""
    found = []
    for text in names:
        name = cache.parse_hub_name(text if text.startswith(cache.PREFIX) else f"{cache.PREFIX}{text}")
        if name is None or not name.is_cached():
            raise click.UsageError(f"{text!r} is not in the cache; 'jumok cache list' has its models")
        found.append(name)
    for name in found:
        cache.remove(name)
