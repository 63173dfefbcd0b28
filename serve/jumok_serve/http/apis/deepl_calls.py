"""Keys and errors of DeepL's HTTP API."""

from google.rpc.status_pb2 import Status
from starlette.responses import JSONResponse, Response

from jumok_proto.errors import GlossaryNotFoundError, JumokError
from jumok_serve.http.backend import Sender
from jumok_serve.http.errors import http_status, retry_headers
from jumok_serve.http.site import Incoming

KEY_SCHEME = "DeepL-Auth-Key "
STATUSES = {401: 403, 404: 400}
"""Statuses that this API has in place of others; an unknown glossary keeps its 404."""


def refuse(error: JumokError, status: Status) -> Response:
    """Make the response of an error."""
    code = http_status(error)
    if not isinstance(error, GlossaryNotFoundError):
        code = STATUSES.get(code, code)
    return JSONResponse({"message": status.message}, code, headers=retry_headers(error))


def sender_of(incoming: Incoming) -> Sender:
    """Describe the sender, whose key may come in either scheme."""
    return incoming.sender(incoming.key(KEY_SCHEME) or incoming.key())
