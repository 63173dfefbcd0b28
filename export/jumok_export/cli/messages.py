"""Messages of commands on standard error."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jumok_serve.bundle.bundle import Bundle


def written(out: Path, bundle: "Bundle") -> str:
    """Describe a new bundle in one line."""
    from jumok_serve.runtime.device import describe_agreement  # noqa: PLC0415

    manifest = bundle.manifest
    sizes = (
        f"{precision} {sum(manifest.files[file].size for file in variant.files) / 1e6:.1f} MB"
        for precision, variant in manifest.precisions.items()
    )
    agreement = "".join(f"; {name} {describe_agreement(manifest, name)}" for name in manifest.agreement)
    failed = [precision for precision, report in manifest.verification.items() if not report.passed]
    warning = f"; its verification FAILED in {', '.join(failed)}: see `jumok inspect --all {out}`" if failed else ""
    serving = f"; 'jumok serve {out}' serves it"
    return f"wrote {out}: {manifest.name} {manifest.version}, {', '.join(sizes)}{agreement}{warning}{serving}"


def say(message: str) -> None:
    """Print a message."""
    click.echo(message, err=True)


def timed() -> Callable[[str], None]:
    """Return a function that prints messages with the seconds since this call."""
    started = time.monotonic()
    return lambda message: say(f"{time.monotonic() - started:6.1f} s  {message}")
