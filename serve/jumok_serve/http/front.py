"""HTTP port of a gRPC server, in its process."""

from collections.abc import Sequence

from jumok_serve.http.application import Application
from jumok_serve.http.engine_backend import EngineBackend
from jumok_serve.http.port import HttpPort
from jumok_serve.http.site import Site
from jumok_serve.service.server import Server
from jumok_serve.service.services import Services


def make_http_front(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    timeout_s: float = 300.0,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    playground: bool = True,
) -> HttpPort:
    """Make the HTTP port of a server.

    Args:
        port: port; 0: any free one.
        timeout_s: time for a response once its request is read, in seconds.
        origins: web pages that may call; ``*``: all.
        hosts: hosts that requests may name; ``*``: any. Without them a server on a loopback address that needs no
            token takes loopback names alone, so that no page elsewhere reaches it by a name of its own.
        playground: True if there is a page to translate in.
    """
    application = make_application(server, timeout_s=timeout_s, origins=origins, hosts=hosts, playground=playground)
    return HttpPort(application, host=host, port=port, limits=server.limits, tls=server.tls)


def make_application(
    services: Services, *, timeout_s: float, origins: Sequence[str], hosts: Sequence[str] = (), playground: bool
) -> Application:
    """Make the HTTP application of services; arguments are those of `make_http_front`."""
    site = Site(
        backend=EngineBackend(services),
        limits=services.limits,
        intake=services.intake,
        unread=services.unread,
        timeout_s=timeout_s,
    )
    return Application(site, origins, hosts=hosts, playground=playground)
