"""Check of optional packages."""

from importlib.util import find_spec


def need(*packages: str) -> None:
    """Raise ``ModuleNotFoundError`` for a package that is not installed, without importing packages."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
