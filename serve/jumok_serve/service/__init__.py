"""gRPC service around translators."""

from jumok_serve.service.models.lifecycle import Administration
from jumok_serve.service.server import Server, Services, run_server

__all__ = ["Administration", "Server", "Services", "run_server"]
