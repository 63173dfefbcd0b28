"""gRPC service around translators."""

from jumok_serve.service.server import Server, run_server
from jumok_serve.service.services import Administration, Services

__all__ = ["Administration", "Server", "Services", "run_server"]
