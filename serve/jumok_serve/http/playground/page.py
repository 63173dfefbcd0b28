"""Files of the page, with headers that let it load and call this server alone."""

import hashlib
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from jumok_proto import file_formats
from jumok_serve.http.apis.own_json import OWN
from jumok_serve.http.site import Answer, Incoming, Site, route

FILES = Path(__file__).parent / "static"
INDEX = "index.html"
ENDINGS = ", ".join(file_formats.ENDINGS)
"""Ends of the names of files that can be translated, in place of ``{endings}`` in the page."""
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "connect-src 'self'",
        "img-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content security policy: nothing inline, from elsewhere or made of strings."""
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


def playground_routes(site: Site) -> list[Route]:
    """Make the endpoints of the page and of its files."""
    return [
        route(site, OWN, "/" if path.name == INDEX else f"/playground/{path.name}", "GET", _answer_of(path))
        for path in sorted(FILES.iterdir())
    ]


def _answer_of(path: Path) -> Answer:
    content = path.read_bytes()
    if path.name == INDEX:
        content = content.replace(b"{endings}", ENDINGS.encode())
    headers = {**HEADERS, "content-type": TYPES[path.suffix], "etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    async def answer(incoming: Incoming) -> Response:
        if incoming.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return answer
