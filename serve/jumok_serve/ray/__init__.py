"""Ray Serve: replicas of a server on the machines of a cluster, behind Ray's gRPC and HTTP proxies."""

from jumok_serve.ray.application import app
from jumok_serve.ray.deployment import add_services

__all__ = ["add_services", "app"]
