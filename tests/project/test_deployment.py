"""The image, compose.yaml and the Kubernetes manifests: they are valid, and agree with the settings and each other.

`deploy/check_image.py` checks a built image, where there is an engine to run it.
"""

import copy
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from jumok.commands.health import health
from jumok_proto.v1 import translation_pb2
from jumok_serve.cli.serve_commands import serve
from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "deploy/check_image.py"
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
SERVICES = {service.full_name for service in translation_pb2.DESCRIPTOR.services_by_name.values()}


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


def settings(arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a `jumok serve` command with ``models/`` mounted at /models; unknown ones fail."""
    models = str(ROOT / "models")
    environment = {name: value.replace("/models", models) for name, value in variables.items()}
    given = [argument.replace("/models", models) for argument in arguments]
    done = CliRunner().invoke(serve, [*given, "--print-config"], env=environment)
    assert done.exit_code == 0, done.output
    return tomllib.loads(done.output)


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_image_serves_what_it_is_told(stage: str) -> None:
    image = instructions(stage)
    assert json.loads(image["ENTRYPOINT"]) == ["jumok"]
    assert json.loads(image["CMD"]) == [serve.name]
    bundle = "/models/multi30k-en-de-transformer"
    served = settings([bundle], image_variables(stage))
    assert settings([], image_variables(stage) | {"JUMOK_BUNDLES": bundle}) == served
    assert (served["host"], str(served["port"])) == ("0.0.0.0", image["EXPOSE"])
    assert served["device"] == stage


def test_the_health_check_asks_the_port_that_is_served() -> None:
    checked = re.search(r"CMD (\[.*\])$", instructions("cpu")["HEALTHCHECK"])
    assert checked is not None
    assert json.loads(checked[1]) == ["jumok", health.name]
    (server,) = (parameter for parameter in health.params if parameter.name == "server")
    assert server.default == f"localhost:{instructions('cpu')['EXPOSE']}"


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_image_is_not_roots_and_ends_by_a_signal_that_drains(stage: str) -> None:
    image = instructions(stage)
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", image["USER"])
    assert image["STOPSIGNAL"] == "SIGTERM"


def test_the_builder_sees_what_the_wheel_is_made_of() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        configured = tomllib.load(stream)
    project, hatch = configured["project"], configured["tool"]["hatch"]
    needed = {
        "pyproject.toml",
        project["readme"],
        *project["license-files"],
        *hatch["build"]["targets"]["wheel"]["packages"],
        "hatch_build.py",
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
    assert [port.rpartition(":")[2] for port in server["ports"]] == [str(served["port"])]
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


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_valid(manifest: Path) -> None:
    resource = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    newest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(resource, newest, strict=True)
    wrong = copy.deepcopy(resource)
    wrong["spec"]["selektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="selektor"):
        kubernetes_validate.validate(wrong, newest, strict=True)


def test_kubernetes_serves(pod: dict[str, Any], container: dict[str, Any]) -> None:
    limits = container["resources"]["limits"]
    variables = {
        one["name"]: one["value"] if "value" in one else limits[one["valueFrom"]["resourceFieldRef"]["resource"][7:]]
        for one in container["env"]
    }
    assert instructions("cpu")["CMD"] == json.dumps(container["args"][:1])
    served = settings(container["args"][1:], image_variables() | variables)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": served["port"], "metrics": served["metrics_port"]}
    assert served["metrics_host"] == "0.0.0.0"
    assert served["replicas"] * served["threads"] == int(limits["cpu"])

    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > served["grace_s"] + pause_s
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["grpc"]["port"] == served["port"]
        assert container[probe]["grpc"].get("service", "") in {"", *SERVICES}
    annotations = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(served["metrics_port"])


def test_kubernetes_locks_the_container(pod: dict[str, Any], container: dict[str, Any]) -> None:
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == instructions("cpu")["USER"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"models": "/models", "tmp": "/tmp"}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts)


def test_manifests_speak_of_the_same_servers() -> None:
    deployment, service, autoscaler, budget = (
        load(f"deploy/kubernetes/{name}.yaml") for name in ("deployment", "service", "autoscaler", "disruption-budget")
    )
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert autoscaler["spec"]["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    assert "replicas" not in deployment["spec"]  # or applying it again would undo what the autoscaler did
    assert service["spec"]["clusterIP"] == "None"


def test_a_missing_engine_is_named() -> None:
    command = [sys.executable, "-W", "error", str(CHECK), "--engine", "no-such-engine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "check failed: no engine 'no-such-engine'; name another with --engine\n"
