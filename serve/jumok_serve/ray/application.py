"""Application of Ray Serve, built from settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.cli.named_models import bundles_of
from jumok_serve.cli.settings import NAMES, Configuration, read_configuration
from jumok_serve.errors import ConfigurationError
from jumok_serve.ray.deployment import Replica

REFUSED = {
    name: why
    for why, names in {
        "Ray's proxies have the ports and their addresses": "host port http_host http_port",
        "Ray's proxies have no TLS; put a proxy with TLS in front of them": "tls_certificate tls_key tls_client_ca",
        "Ray's proxies have the connections": "max_connections max_connections_of_address max_streams max_idle_s "
        "max_connection_age_s max_connection_grace_s keepalive_s keepalive_timeout_s min_ping_interval_s",
        "Ray has the metrics": "metrics_host metrics_port",
        "a call reaches one replica; build the application again instead": "model_root admin_host admin_port",
    }.items()
    for name in names.split()
}
"""Settings of a server that an application cannot have, and why."""
START_ATTEMPTS = 3
"""Attempts to start a replica, as a bundle that is missing stays missing."""
DRAIN_LOOK_S = 0.5
"""Time between two looks at a replica that stops: its calls have ended, or not."""


class Scale(BaseModel):
    """Size of a deployment, in Ray's terms.

    Attributes:
        num_replicas: actors, each with all models; with ``max_replicas`` the least.
        max_replicas: most actors, which Ray starts by the calls that are open; None: their number is fixed.
        target_ongoing_requests: open calls of each actor at which Ray starts another; the default is half a batch of
            sentences.
        look_back_period_s, upscale_delay_s, downscale_delay_s: see Ray's ``AutoscalingConfig``; seconds.
        num_cpus, num_gpus: cores and GPUs of each actor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_replicas: PositiveInt = 1
    max_replicas: PositiveInt | None = None
    target_ongoing_requests: PositiveFloat = 64
    look_back_period_s: PositiveFloat = 30
    upscale_delay_s: NonNegativeFloat = 30
    downscale_delay_s: NonNegativeFloat = 600
    num_cpus: PositiveInt = 1
    num_gpus: NonNegativeFloat = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(f"max_replicas is {self.max_replicas}, less than num_replicas, {self.num_replicas}")
        return self

    def options(self) -> dict[str, Any]:
        """Return the options of the deployment."""
        options: dict[str, Any] = {"ray_actor_options": self.model_dump(include={"num_cpus", "num_gpus"})}
        if self.max_replicas is None:
            return {**options, "num_replicas": self.num_replicas}
        scaling = self.model_dump(exclude={"num_replicas", "num_cpus", "num_gpus"})
        return {**options, "autoscaling_config": {**scaling, "min_replicas": self.num_replicas}}


def app(settings: dict[str, Any]) -> Any:
    """Build the application of Ray Serve, on a machine that has its bundles.

    Args:
        settings: settings of ``jumok serve`` by name, the fields of `Scale`, and ``config``, a file of settings.
            Variables ``JUMOK_...`` count too.

    Raises:
        ConfigurationError: a setting is wrong or unknown, or cannot be used with Ray.
        BundleError: a bundle is missing, or its manifest cannot be used.
    """
    own = {name: value for name, value in settings.items() if name not in Scale.model_fields and name != "config"}
    try:
        scale = Scale.model_validate({name: settings[name] for name in settings if name in Scale.model_fields})
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc'])) or 'replicas'}: {one['msg']}" for one in error.errors()]
        raise ConfigurationError(wrong) from error
    configuration = _configuration(settings.get("config"), own, scale)
    bundles = [bundle for source in configuration.bundles for bundle in bundles_of(source)]
    manifests = [Bundle.open(bundle).manifest for bundle in bundles]
    versions = {manifest.name: manifest.version for manifest in manifests}
    from ray import serve  # noqa: PLC0415 - an extra

    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="jumok",
        max_ongoing_requests=configuration.max_queue_requests,  # more would wait in the proxy, and not fill batches
        max_queued_requests=-1,  # replicas refuse with a reason and a time to wait
        graceful_shutdown_timeout_s=configuration.grace_s,
        graceful_shutdown_wait_loop_s=DRAIN_LOOK_S,
        max_constructor_retry_count=START_ATTEMPTS,
        **scale.options(),
    )
    return deployment.bind(configuration, versions)


def _configuration(file: str | None, own: Mapping[str, Any], scale: Scale) -> Configuration:
    """Read the settings of replicas."""
    if unknown := [name for name in own if name not in NAMES]:
        known = "'jumok serve --help' and jumok_serve.ray.application.Scale have all"
        raise ConfigurationError([f"{name}: no such setting; {known}" for name in unknown])
    bundles = own.get("bundles")
    flags = {**own, "bundles": bundles.split(os.pathsep) if isinstance(bundles, str) else bundles}
    # Ray's proxy has the port of HTTP, on which some settings depend.
    effective = read_configuration(None if file is None else Path(file), os.environ, {"http_port": 0, **flags})
    wrong = [name for name in REFUSED if name in effective.given and (name != "http_port" or name in own)]
    if wrong:
        raise ConfigurationError([f"{name}: leave it out, {REFUSED[name]}" for name in wrong])
    found = effective.configuration
    threads = found.threads or max(1, scale.num_cpus // (found.replicas or 1))
    return found.model_copy(update={"replicas": found.replicas or 1, "threads": threads})
