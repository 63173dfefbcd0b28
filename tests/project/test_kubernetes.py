"""The Kubernetes manifests: they are valid, agree with the settings and each other, and serve with their Secrets."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import trustme
import yaml

import jumok
from jumok.commands.health import health
from jumok_serve.service.auth.tokens import make_token
from tests.faults.tools.name_server import TTL_S
from tests.project.test_deployment import MODELS, ROOT, here, image_variables, instructions, load, settings
from tests.support.command import run, serve
from tests.support.hang import HANG_S

MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
MONITOR, SCALED_OBJECT = (f"deploy/kubernetes/operators/{name}.yaml" for name in ("pod-monitor", "scaled-object"))
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
NAMES = ("localhost", "jumok.default.svc.cluster.local")
"""Names in the certificate, as docs/operations/deploy.md makes it."""


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
    (server,) = (parameter for parameter in health.params if parameter.name == "server")
    assert server.default == f"localhost:{instructions('cpu')['EXPOSE'].split()[0]}"
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
