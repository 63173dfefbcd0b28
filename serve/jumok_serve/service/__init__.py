"""gRPC service around translators."""

from jumok_serve.service.server import Administration, Server, run_server

__all__ = ["Administration", "Server", "run_server"]
