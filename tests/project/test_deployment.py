"""The image and compose.yaml: they are valid, and agree with the settings and each other.

`deploy/check_image.py` checks a built image, where there is an engine to run it.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from jumok.commands.health import health
from jumok_serve.cli.serve_commands import serve

ROOT = Path(__file__).parents[2]
MODELS = {"/models": ROOT / "models"}
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def load(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return loaded


def instructions(stage: str) -> dict[str, str]:
    """The last argument of each instruction of a stage of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in filter(None, lines):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, name = rest.split(" AS ")
            current = found[name] = dict(found.get(base, {}))
        current[instruction] = rest
    return found[stage]


def image_variables(stage: str = "cpu") -> dict[str, str]:
    return dict(re.findall(r"(JUMOK_\w+)=(\S+)", instructions("server")["ENV"] + " " + instructions(stage)["ENV"]))


def here(text: str, mounted: Mapping[str, Path]) -> str:
    """Replace the paths of mounted folders in a container by those of this machine."""
    for path, folder in mounted.items():
        text = text.replace(path, str(folder))
    return text


def settings(
    arguments: Sequence[str], variables: Mapping[str, str], mounted: Mapping[str, Path] = MODELS
) -> dict[str, Any]:
    """Settings of a `jumok serve` command with folders mounted; unknown ones fail."""
    environment = {name: here(value, mounted) for name, value in variables.items()}
    given = [here(argument, mounted) for argument in arguments]
    done = CliRunner().invoke(serve, [*given, "--print-config"], env=environment)
    assert done.exit_code == 0, done.output
    return tomllib.loads(done.output)


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_image_serves_what_it_is_told(stage: str) -> None:
    image = instructions(stage)
    assert json.loads(image["ENTRYPOINT"]) == ["jumok"]
    assert json.loads(image["CMD"]) == [serve.name]
    bundle = "/models/multi30k-en-de-transformer"
    served = settings([bundle], image_variables(stage))
    assert settings([], image_variables(stage) | {"JUMOK_BUNDLES": bundle}) == served
    assert (served["host"], served["http_host"]) == ("0.0.0.0", "0.0.0.0")
    assert image["EXPOSE"].split()[0] == str(served["port"])
    assert served["device"] == stage


def test_the_health_check_asks_the_port_that_is_served() -> None:
    checked = re.search(r"CMD (\[.*\])$", instructions("cpu")["HEALTHCHECK"])
    assert checked is not None
    assert json.loads(checked[1]) == ["jumok", health.name]
    (server,) = (parameter for parameter in health.params if parameter.name == "server")
    assert server.default == f"localhost:{instructions('cpu')['EXPOSE'].split()[0]}"


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_image_is_not_roots_and_ends_by_a_signal_that_drains(stage: str) -> None:
    image = instructions(stage)
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", image["USER"])
    assert image["STOPSIGNAL"] == "SIGTERM"


def test_images_from_elsewhere_are_pinned_by_digest() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    assert len(stages) == text.count("FROM ")
    made = {name for _, name in stages}
    used = [base for base, _ in stages if base not in made]
    used += [service["image"] for service in load("compose.yaml")["services"].values() if "build" not in service]
    assert used
    assert [image for image in used if not DIGEST.search(image)] == []


def test_the_builder_sees_what_the_image_is_made_of() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        configured = tomllib.load(stream)
    project, hatch = configured["project"], configured["tool"]["hatch"]
    needed = {
        "pyproject.toml",
        project["readme"],
        *project["license-files"],
        *hatch["build"]["targets"]["wheel"]["packages"],
        "hatch_build.py",
        "deploy/locks",
    }
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    assert seen == needed
    assert str(Path(hatch["version"]["path"]).parent) in needed


def test_compose_serves_and_is_scraped() -> None:
    composed = load("compose.yaml")
    server, prometheus = composed["services"]["jumok"], composed["services"]["prometheus"]
    served = settings([], image_variables() | server["environment"])
    assert server["build"]["target"] == "cpu"
    assert instructions(server["build"]["target"])
    ports = [str(served["port"]), str(served["http_port"])]
    assert [port.rpartition(":")[2] for port in server["ports"]] == ports == instructions("cpu")["EXPOSE"].split()
    collected = load("deploy/prometheus.yml")
    scraped = collected["scrape_configs"]
    assert [one["static_configs"] for one in scraped] == [[{"targets": [f"jumok:{served['metrics_port']}"]}]]
    mounted = {volume.split(":")[1] for volume in prometheus["volumes"]}
    assert {*collected["rule_files"]} <= mounted
    assert served["metrics_host"] == "0.0.0.0"
    assert float(server["stop_grace_period"].removesuffix("s")) > served["grace_s"]
    grafana = composed["services"]["grafana"]
    (source,) = load("deploy/grafana/datasource.yml")["datasources"]
    assert source["url"] == f"http://prometheus:{prometheus['ports'][0].rpartition(':')[2]}"
    (dashboards,) = load("deploy/grafana/dashboards.yml")["providers"]
    places = {volume.split(":")[1] for volume in grafana["volumes"]}
    assert f"{dashboards['options']['path']}/jumok.json" in places
    for service in (server, prometheus, grafana):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        sources = [volume.partition(":")[0] for volume in service["volumes"]]
        assert all((ROOT / source).exists() for source in sources if source.startswith("."))
        assert {source for source in sources if not source.startswith(".")} <= set(composed["volumes"])
