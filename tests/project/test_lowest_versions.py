"""Lowest versions of packages, with which `make test-lowest` tests SDK and server."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import lowest_versions
from tests.project.test_wheels import needed, project

ROOT = Path(__file__).parents[2]


def test_every_package_has_the_lowest_version_that_all_extras_allow() -> None:
    extras = ",".join(project()["project"]["optional-dependencies"])
    lowest = lowest_versions.lowest_versions(extras)
    wanted: dict[str, list[Requirement]] = {}
    for requirement in needed(extras):
        wanted.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    assert {canonicalize_name(name) for name in lowest} == wanted.keys()
    for name, version in lowest.items():
        requirements = wanted[canonicalize_name(name)]
        assert all(requirement.specifier.contains(version) for requirement in requirements)
        assert any(bound.version == version for requirement in requirements for bound in requirement.specifier)


def write_project(folder: Path, *requirements: str) -> None:
    lines = "".join(f'  "{requirement}",\n' for requirement in requirements)
    text = f'[project]\nname = "one"\ndependencies = [\n{lines}]\noptional-dependencies.more = ["two>=1.10"]\n'
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def test_of_two_bounds_the_higher_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lowest_versions, "ROOT", tmp_path)
    write_project(tmp_path, "two>=1.9,<3", "three[four]<5,>=2; sys_platform == 'linux'", "six~=0.1")
    assert lowest_versions.lowest_versions("more") == {"two": "1.10", "three": "2", "six": "0.1"}


@pytest.mark.parametrize("requirement", ["two", "two<3", "two!=1", "two[four]; python_version >= '3.11'"])
def test_a_package_without_a_lower_bound_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, requirement: str
) -> None:
    monkeypatch.setattr(lowest_versions, "ROOT", tmp_path)
    write_project(tmp_path, requirement)
    with pytest.raises(lowest_versions.BoundError, match="two has no lower bound"):
        lowest_versions.lowest_versions("more")


def test_the_target_takes_no_torch() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^SERVER_EXTRAS := (\S+)$", makefile, re.MULTILINE)
    packages = {canonicalize_name(requirement.name) for requirement in needed(f"{extras},test")}
    assert {"onnxruntime", "starlette", "pytest"} <= packages
    assert not packages & {"torch", "lightning", "transformers", "onnxscript"}
