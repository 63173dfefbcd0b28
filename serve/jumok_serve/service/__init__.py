"""The gRPC service: what the wire asks of the translators, and nothing of how they work."""

from jumok_serve.service.server import Administration, Server, run_server

__all__ = ["Administration", "Server", "run_server"]
