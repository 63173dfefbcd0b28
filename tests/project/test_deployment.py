"""The image, compose.yaml and the Kubernetes manifests: valid, in agreement with the settings and each other.

The server of the manifests runs with their Secrets. `deploy/check_image.py` checks a built image, where there is an
engine to run it.
"""

import copy
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import trustme
import yaml
from click.testing import CliRunner

import jumok
from jumok.commands.health import health
from jumok_serve.cli.serve_commands import serve as serve_command
from jumok_serve.service.auth.tokens import make_token
from tests.faults.tools.name_server import TTL_S
from tests.support.command import run, serve
from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]
MODELS = {"/models": ROOT / "models"}
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
MONITOR, SCALED_OBJECT = (f"deploy/kubernetes/operators/{name}.yaml" for name in ("pod-monitor", "scaled-object"))
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
NAMES = ("localhost", "jumok.default.svc.cluster.local")
"""Names in the certificate, as docs/operations/deploy.md makes it."""


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
    done = CliRunner().invoke(serve_command, [*given, "--print-config"], env=environment)
    assert done.exit_code == 0, done.output
    return tomllib.loads(done.output)


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_the_image_serves_what_it_is_told(stage: str) -> None:
    image = instructions(stage)
    assert json.loads(image["ENTRYPOINT"]) == ["jumok"]
    assert json.loads(image["CMD"]) == [serve_command.name]
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


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


def put_secret(folder: Path, version: str, content: dict[str, str]) -> None:
    """Put a version of a Secret into a folder as the kubelet does: links through ``..data``, replaced at once."""
    (folder / version).mkdir(parents=True)
    for key, value in content.items():
        (folder / version / key).write_text(value, encoding="utf-8")
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(f"..data/{key}")
    (folder / "..data_tmp").symlink_to(version)
    os.replace(folder / "..data_tmp", folder / "..data")


@pytest.fixture
def secrets() -> dict[str, dict[str, str]]:
    """Secrets as their commands in docs/operations/deploy.md make them, of a certificate that an authority signed."""
    issued = trustme.CA().issue_cert(*NAMES)
    return {
        "jumok-tls": {
            "tls.crt": issued.cert_chain_pems[0].bytes().decode(),
            "tls.key": issued.private_key_pem.bytes().decode(),
        },
        "jumok-tokens": {"tokens": ""},
    }


@pytest.fixture
def mounted(
    pod: dict[str, Any], container: dict[str, Any], secrets: dict[str, dict[str, str]], tmp_path: Path
) -> dict[str, Path]:
    """Folders of this machine for the mounted volumes, by path in the container."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    folders = dict(MODELS)
    for mount in container["volumeMounts"]:
        if "secret" in volumes[mount["name"]]:
            assert mount["readOnly"] is True
            assert "subPath" not in mount  # or changes of the Secret would not arrive
            folders[mount["mountPath"]] = folder = tmp_path / mount["name"]
            put_secret(folder, "..1", secrets[volumes[mount["name"]]["secret"]["secretName"]])
    return folders


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_valid(manifest: Path) -> None:
    resource = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    newest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(resource, newest, strict=True)
    wrong = copy.deepcopy(resource)
    wrong["spec"]["selektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="selektor"):
        kubernetes_validate.validate(wrong, newest, strict=True)


def test_the_settings_agree_with_the_pod(
    pod: dict[str, Any], container: dict[str, Any], mounted: dict[str, Path]
) -> None:
    limits = container["resources"]["limits"]
    variables = {
        one["name"]: one["value"] if "value" in one else limits[one["valueFrom"]["resourceFieldRef"]["resource"][7:]]
        for one in container["env"]
    }
    assert instructions("cpu")["CMD"] == json.dumps(container["args"][:1])
    served = settings(container["args"][1:], image_variables() | variables, mounted)
    assert {"tls_certificate", "tls_key", "tokens"} <= served.keys()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": served["port"], "http": served["http_port"], "metrics": served["metrics_port"]}
    assert served["http_host"] == served["metrics_host"] == "0.0.0.0"
    assert served["replicas"] * served["threads"] == int(limits["cpu"])

    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > served["grace_s"] + pause_s
    annotations = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(served["metrics_port"])


def test_the_container_is_locked(pod: dict[str, Any], container: dict[str, Any]) -> None:
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == instructions("cpu")["USER"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    secret = {"tls": "/etc/jumok/tls", "tokens": "/etc/jumok/tokens"}
    assert mounts == {"models": "/models", "tmp": "/tmp", **secret}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts)


def test_probes_pass_with_tls_and_tokens(container: dict[str, Any], mounted: dict[str, Path]) -> None:
    secret, token = make_token("reports", ["translate"])
    put_secret(mounted["/etc/jumok/tokens"], "..2", {"tokens": token.line()})
    with serve(*(here(argument, mounted) for argument in container["args"][1:])) as (_, address):
        local = f"localhost:{address.rpartition(':')[2]}"

        def status(probe: str) -> int:
            program, name, *arguments = container[probe]["exec"]["command"]
            assert (program, name) == ("jumok", health.name)
            given = [here(argument, mounted) for argument in arguments]
            return run(name, "--server", local, *given).returncode

        assert [status(probe) for probe in PROBES] == [0, 0, 0]
        tls = jumok.Tls(root_certificates=mounted["/etc/jumok/tls"] / "tls.crt")

        def outcome(secret: str | None) -> str:
            with jumok.Client(local, tls=tls, token=secret, timeout_s=HANG_S) as client:
                try:
                    return client.translate("A dog runs.", max_length=3).model
                except jumok.UnauthenticatedError as error:
                    return error.reason

        model = Path(container["args"][1]).name
        assert [outcome(None), outcome(secret)] == ["UNAUTHENTICATED", model]
        # A changed Secret needs no restart.
        other, added = make_token("other", ["translate"])
        put_secret(mounted["/etc/jumok/tokens"], "..3", {"tokens": added.line()})
        assert [outcome(secret), outcome(other)] == ["UNAUTHENTICATED", model]
    assert [status(probe) for probe in PROBES] == [1, 1, 1]


def test_probes_leave_a_server_time_to_start_and_to_answer(container: dict[str, Any]) -> None:
    for probe in PROBES:
        assert container[probe]["timeoutSeconds"] >= 10  # a Python process starts in a pod that may be busy
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 60


def test_manifests_speak_of_the_same_servers(container: dict[str, Any]) -> None:
    deployment, service, autoscaler, budget, policy = (
        load(f"deploy/kubernetes/{name}.yaml")
        for name in ("deployment", "service", "autoscaler", "disruption-budget", "network-policy")
    )
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert autoscaler["spec"]["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    assert "replicas" not in deployment["spec"]  # or applying it again would undo what the autoscaler did
    assert service["spec"]["clusterIP"] == "None"
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["grpc", "http"]
    opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert opened == [port["name"] for port in container["ports"]]
    assert all(rule["from"] for rule in policy["spec"]["ingress"])  # an empty list would admit every pod
    assert policy["spec"]["egress"] == []
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_prometheus_operator_scrapes_the_pods(container: dict[str, Any]) -> None:
    """Fields are those of the operator's own schema, which kubernetes-validate lacks."""
    monitor = load(MONITOR)
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert set(monitor["spec"]) == {"jobLabel", "selector", "podMetricsEndpoints"}
    labels = load("deploy/kubernetes/deployment.yaml")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"] == {"matchLabels": labels}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert set(endpoint) == {"port", "interval"}
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    alerts = (ROOT / "deploy/alerts.yml").read_text(encoding="utf-8")
    assert f'job="{labels[monitor["spec"]["jobLabel"]]}"' in alerts


def test_keda_scales_what_the_other_autoscaler_would_scale() -> None:
    """Fields are those of KEDA's own schema, which kubernetes-validate lacks."""
    scaled, autoscaler = load(SCALED_OBJECT), load("deploy/kubernetes/autoscaler.yaml")["spec"]
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    assert spec["scaleTargetRef"] == {"name": autoscaler["scaleTargetRef"]["name"]}  # of a Deployment by default
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (autoscaler["minReplicas"], autoscaler["maxReplicas"])
    assert spec.keys() - {"scaleTargetRef", "minReplicaCount", "maxReplicaCount"} == {"pollingInterval", "triggers"}
    cpu, queue = spec["triggers"]
    (resource,) = autoscaler["metrics"]
    used = resource["resource"]["target"]["averageUtilization"]
    assert cpu == {"type": "cpu", "metricType": "Utilization", "metadata": {"value": str(used)}}
    assert queue.keys() == {"type", "metadata"}
    assert queue["type"] == "prometheus"
    assert queue["metadata"].keys() == {"serverAddress", "query", "threshold", "ignoreNullValues"}
    assert all(isinstance(value, str) for value in queue["metadata"].values())  # numbers would be refused


def test_clients_know_new_servers_before_old_ones_end(container: dict[str, Any]) -> None:
    spec = load("deploy/kubernetes/deployment.yaml")["spec"]
    assert spec["strategy"] == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert spec["minReadySeconds"] > TTL_S
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert float(given["JUMOK_MAX_CONNECTION_AGE_S"]) > spec["minReadySeconds"]
