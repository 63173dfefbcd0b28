"""Print the lowest versions that pyproject.toml allows, as constraints of pip.

    python tests/lowest_versions.py EXTRA,...

They are those of the SDK's packages and of the extras'. Needs nothing but Python: nothing is installed before it runs.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?(?P<versions>[^;]*)")
BOUND = re.compile(r"(?:>=|==|~=)\s*([\d.]+)")


class BoundError(Exception):
    """A package without a lowest version."""


def lowest_versions(extras: str) -> dict[str, str]:
    """Return the lowest versions by package, of the SDK with extras; of two bounds the higher.

    Raises:
        BoundError: a package has no lower bound.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest: dict[str, str] = {}
    for name, versions in needed(project, [*project["dependencies"], f"{project['name']}[{extras}]"]):
        bound = BOUND.search(versions)
        if bound is None:
            raise BoundError(f"{name} has no lower bound in pyproject.toml; write the lowest version that works")
        lowest[name] = max(lowest.get(name, "0"), bound[1], key=parts)
    return lowest


def needed(project: dict[str, Any], requirements: list[str]) -> Iterator[tuple[str, str]]:
    """Yield names and versions of the packages that requirements name, and those of the extras among them."""
    for requirement in requirements:
        found = REQUIREMENT.match(requirement)
        assert found is not None
        if found["name"] != project["name"]:
            yield found["name"], found["versions"]
            continue
        for extra in found["extras"].split(","):
            yield from needed(project, project["optional-dependencies"][extra])


def parts(version: str) -> list[int]:
    """Return the numbers of a version, which compare as versions do."""
    return [int(part) for part in version.split(".")]


def main() -> None:
    """Print a line for each package; exit with code 1 and a reason if one has no lower bound."""
    if len(sys.argv) != 2:
        sys.exit("usage: lowest_versions.py EXTRA,...")
    try:
        lowest = lowest_versions(sys.argv[1])
    except BoundError as error:
        sys.exit(str(error))
    print(*(f"{name}=={version}" for name, version in lowest.items()), sep="\n")


if __name__ == "__main__":
    main()
