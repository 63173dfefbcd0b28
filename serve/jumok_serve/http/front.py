"""HTTP port of a gRPC server, in its process."""

from collections.abc import Sequence

from jumok_serve.http.application import Application
from jumok_serve.http.engine_backend import EngineBackend
from jumok_serve.http.port import HttpPort
from jumok_serve.http.site import Site
from jumok_serve.service.server import Server


def make_http_front(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    timeout_s: float = 300.0,
    origins: Sequence[str] = (),
    playground: bool = True,
) -> HttpPort:
    """Make the HTTP port of a server.

    Args:
        port: port; 0: any free one.
        timeout_s: time from a request's arrival to its response, in seconds.
        origins: web pages that may call; ``*``: all.
        playground: True if there is a page to translate in.
    """
    site = Site(backend=EngineBackend(server), limits=server.limits, intake=server.intake, timeout_s=timeout_s)
    application = Application(site, origins, playground=playground)
    return HttpPort(application, host=host, port=port, limits=server.limits, tls=server.tls)
