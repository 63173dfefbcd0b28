"""gRPC service around translators."""

from jumok_serve.service.models.lifecycle import Administration
from jumok_serve.service.server import Server, run_server
from jumok_serve.service.services import Services

__all__ = ["Administration", "Server", "Services", "run_server"]
