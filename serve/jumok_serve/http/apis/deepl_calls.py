"""Keys, requests and errors of DeepL's HTTP API."""

from google.rpc.status_pb2 import Status
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from jumok_proto.errors import GlossaryNotFoundError, JumokError
from jumok_serve.http.errors import http_status, retry_headers
from jumok_serve.http.requests import Fields, parse_fields
from jumok_serve.http.site import Dialect, key_of
from jumok_serve.service.rpc.access import BEARER

KEY_SCHEME = "DeepL-Auth-Key "
STATUSES = {401: 403, 404: 400}
"""Statuses that this API has in place of others; an unknown glossary keeps its 404."""


def refuse(error: JumokError, status: Status) -> Response:
    """Make the response of an error."""
    code = http_status(error)
    if not isinstance(error, GlossaryNotFoundError):
        code = STATUSES.get(code, code)
    return JSONResponse({"message": status.message}, code, headers=retry_headers(error))


def _key(headers: Headers, _: bytes) -> str:
    return key_of(headers, KEY_SCHEME) or key_of(headers, BEARER)


def _parse(headers: Headers, query: bytes, body: bytes, most: int) -> Fields:
    return parse_fields(headers, query, body, most, default="")


DEEPL = Dialect(refuse=refuse, key=_key, parse=_parse)
