"""The gRPC contract as JSON over HTTP, with streams as server-sent events, and its OpenAPI document."""

import asyncio
import json
import re
import reprlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from google.api.annotations_pb2 import http
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.status_pb2 import Status
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import jumok_proto
from jumok_proto.errors import InvalidArgumentError, JumokError
from jumok_proto.v1 import file_pb2, glossary_pb2, model_pb2, translation_pb2
from jumok_serve.http.requests import JSON, Fields, content_type, parse_fields, parse_object
from jumok_serve.http.site import (
    MAX_INLINE_BYTES,
    TRANSLATE_FILE,
    Answer,
    Dialect,
    EventStream,
    Incoming,
    Site,
    describe,
    http_status,
    route,
)
from jumok_serve.service.rpc.call import full_name, written
from jumok_serve.service.rpc.statuses import stopping

FIELD_WORK = 16
"""Work of writing a byte of a message, which can be a number, in bytes of JSON."""
Place: TypeAlias = tuple[tuple[str, int | None], ...]
"""Names of fields from the outermost message on; with an index, those of lists."""
MAX_NAME = 100
"""Characters of an unknown field that an error shows."""
WITH_BODY = frozenset({"POST", "PATCH"})
"""Verbs of requests whose fields are a JSON object."""


class Method(NamedTuple):
    """A method of the contract and its place in HTTP.

    Attributes:
        verb: GET, POST, PATCH or DELETE; `WITH_BODY`: the fields are a JSON object; others: they come from the query
            string.
        path: path with parameters in braces.
        name: full name in gRPC.
        streams: True if the response is a stream of events.
    """

    verb: str
    path: str
    name: str
    request: type[Message]
    response: type[Message]
    streams: bool


def _methods_of(*files: FileDescriptor) -> Iterator[Method]:
    """Yield the methods that the contract gives a place in HTTP, by the option ``google.api.http``."""
    for service in (service for file in files for service in file.services_by_name.values()):
        for method in service.methods:
            rule = method.GetOptions().Extensions[http]
            if verb := rule.WhichOneof("pattern"):
                yield Method(
                    verb=verb.upper(),
                    path=getattr(rule, verb),
                    name=full_name(method),
                    request=GetMessageClass(method.input_type),
                    response=GetMessageClass(method.output_type),
                    streams=method.server_streaming,
                )


METHODS = tuple(
    _methods_of(translation_pb2.DESCRIPTOR, file_pb2.DESCRIPTOR, glossary_pb2.DESCRIPTOR, model_pb2.DESCRIPTOR)
)


def own_routes(site: Site) -> list[Route]:
    """Make the endpoints, and that of their description."""
    document = bytes(JSONResponse(describe_api()).body)

    async def openapi(_: Incoming) -> Response:
        return Response(document, media_type=JSON)

    routes = [route(site, OWN, "/openapi.json", "GET", openapi)]
    for method in METHODS:
        dialect = _BODY if method.verb in WITH_BODY else OWN
        most = 2 * site.limits.max_file_bytes if method.name == TRANSLATE_FILE else 0  # in base64
        answer = _answer_of(method)
        routes.append(route(site, dialect, method.path, method.verb, answer, calls=method.name, max_bytes=most))
    return routes


def _parse_query(_: Headers, query: bytes, __: bytes, most: int) -> Fields:
    return parse_fields(Headers(), query, b"", most)


def _parse_body(headers: Headers, _: bytes, body: bytes, most: int) -> Fields:
    content_type(headers, "", JSON)
    return parse_object(body, most)


def error_object(error: JumokError, status: Status) -> dict[str, object]:
    """Describe an error as Google's APIs do: HTTP status, name of the gRPC status, message and details."""
    details = json_format.MessageToDict(status).get("details", [])
    return {
        "error": {
            "code": http_status(error),
            "status": error.code.name,
            "message": status.message,
            "details": details,
        }
    }


OWN = Dialect(error=error_object, parse=_parse_query)
_BODY = Dialect(error=error_object, parse=_parse_body)


def _answer_of(method: Method) -> Answer:
    async def answer(incoming: Incoming) -> Response:
        request = await incoming.work(partial(_message_of, method, incoming), incoming.size)
        if method.streams:
            events = _events(method, incoming, request)
            return EventStream(incoming.site, _beginning_with(await anext(events), events))
        response = await incoming.call(method.name, request, method.response)
        return await incoming.json(partial(json_format.MessageToDict, response), _work_of(response))

    return answer


def _message_of(method: Method, incoming: Incoming) -> Message:
    """Make a request of fields; takes them out, so that texts are in memory once."""
    fields = {**incoming.fields, **incoming.path}
    incoming.fields.clear()
    message = method.request()
    long = list(_take_long(fields, method.request.DESCRIPTOR))
    try:
        json_format.ParseDict(fields, message)
        for place, text in long:
            _put(message, place, text)
    except (json_format.ParseError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"the request is no {method.request.__name__}, which /openapi.json describes: {error!s:.500}",
            field="request",
        ) from error
    return message


def _take_long(fields: object, kind: Any, before: Place = ()) -> Iterator[tuple[Place, str]]:
    """Take long texts out of JSON of a message type (a descriptor), with their places.

    Protobuf would search each text for surrogates, and hold Python's lock meanwhile. It fails on some numbers, and
    changes others.

    Raises:
        InvalidArgumentError: a wrong number, or an unknown field.
    """
    if not isinstance(fields, dict) or kind.full_name in WELL_KNOWN or kind.GetOptions().map_entry:
        return
    known = {of.json_name: of for of in kind.fields} | dict(kind.fields_by_name)
    for name, value in fields.items():
        of = known.get(name)
        if of is None:
            field = _shown((*before, (name[:MAX_NAME], None)))
            raise InvalidArgumentError(
                f"the field {field!r} is unknown: leave it out; /openapi.json lists the fields", field=field
            )
        holder, keys = (value, range(len(value))) if isinstance(value, list) else (fields, (name,))
        for key in keys:
            place = (*before, (of.name, key if holder is value else None))
            if of.message_type is not None:
                yield from _take_long(holder[key], of.message_type, place)
            elif isinstance(holder[key], int | float):
                _check_number(holder[key], of, place)
            elif of.type != FieldDescriptor.TYPE_STRING or not isinstance(holder[key], str):
                continue
            elif len(holder[key]) > MAX_INLINE_BYTES:
                yield place, holder[key]
                holder[key] = ""


def _check_number(value: float, of: FieldDescriptor, place: Place) -> None:
    """Refuse a number, or a truth value, that a field cannot have."""
    if of.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return
    is_whole = value % 1 == 0 and -(2**63) <= value < 2**64
    kind, fits = {
        FieldDescriptor.CPPTYPE_BOOL: ("true or false", isinstance(value, bool)),
        FieldDescriptor.CPPTYPE_DOUBLE: ("a finite number", abs(value) <= sys.float_info.max),
        FieldDescriptor.CPPTYPE_FLOAT: ("a finite number", abs(value) <= sys.float_info.max),
        FieldDescriptor.CPPTYPE_ENUM: ("the name or number of a value", is_whole),
    }.get(of.cpp_type, ("a whole number of at most 64 bits", is_whole))
    if not fits or (isinstance(value, bool) and of.cpp_type != FieldDescriptor.CPPTYPE_BOOL):
        name = _shown(place)
        raise InvalidArgumentError(f"{name} must be {kind}, got {reprlib.repr(value)}", field=name)


def _shown(place: Place) -> str:
    return ".".join(part if index is None else f"{part}[{index}]" for part, index in place)


def _put(message: Message, place: Place, text: str) -> None:
    """Put a text into a message."""
    *holders, (name, index) = place
    for holder, number in holders:
        message = getattr(message, holder) if number is None else getattr(message, holder)[number]
    if index is None:
        setattr(message, name, text)
    else:
        getattr(message, name)[index] = text


def _work_of(message: Message) -> int:
    """Return the work of writing a message, in bytes of JSON."""
    return FIELD_WORK * message.ByteSize()


async def _events(method: Method, incoming: Incoming, request: Message) -> AsyncIterator[bytes]:
    """Yield the responses as events; an error before the first is raised, a later one is the last event."""
    sender = incoming.sender
    begun = False
    try:
        async with aclosing(
            written(lambda write: incoming.site.backend.stream(method.name, request, sender, write))
        ) as messages:
            async for message in messages:
                yield await incoming.work(partial(_event_of, message), _work_of(message))
                begun = True
    except (JumokError, asyncio.CancelledError) as ended:
        if not begun:
            raise
        error = ended if isinstance(ended, JumokError) else stopping()
        described = error_object(error, describe(error, sender.request_id))
        yield _event(json.dumps(described), "error")


def _event_of(message: Message) -> bytes:
    return _event(json_format.MessageToJson(message, indent=None))


def _event(data: str, name: str = "") -> bytes:
    return f"{f'event: {name}{chr(10)}' if name else ''}data: {data}\n\n".encode()


async def _beginning_with(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in rest:
        yield event


JSON_TYPES: dict[int, dict[str, Any]] = {
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "minimum": 0},
    FieldDescriptor.CPPTYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "string", "format": "uint64"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
}
"""Schemas of numbers and strings in protobuf's JSON mapping."""
WELL_KNOWN: dict[str, dict[str, Any]] = {
    "google.protobuf.Any": {"type": "object"},
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?\d+(\.\d+)?s$"},
}
ERROR = "Error"


def describe_api() -> dict[str, Any]:
    """Make the OpenAPI 3.1 document of `METHODS`, from the descriptors of their messages."""
    schemas: dict[str, Any] = {ERROR: _error_schema()}
    paths: dict[str, Any] = {}
    for method in METHODS:
        paths.setdefault(method.path, {})[method.verb.lower()] = _operation(method, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jumok", "version": jumok_proto.__version__},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(method: Method, schemas: dict[str, Any]) -> dict[str, Any]:
    response = _reference(method.response.DESCRIPTOR, schemas)
    done = {"description": "The response.", "content": _content(response)}
    if method.streams:
        events = _content(_event_schema(response), "text/event-stream")
        done = {"description": "Events, each with a response.", "content": events}
    failed = {"description": "An error.", "content": _content({"$ref": f"#/components/schemas/{ERROR}"})}
    operation: dict[str, Any] = {
        "operationId": method.name.rpartition("/")[2],
        "responses": {"200": done, "default": failed},
    }
    in_path = re.findall(r"{(\w+)}", method.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path]
    if method.verb in WITH_BODY:
        schema = _reference(method.request.DESCRIPTOR, schemas)
        operation["requestBody"] = {"required": True, "content": _content(schema)}
    else:
        fields: Any = method.request.DESCRIPTOR.fields
        parameters += [
            {"name": field.json_name, "in": "query", "schema": _schema(field, schemas)}
            for field in fields
            if field.name not in in_path
        ]
    if parameters:
        operation["parameters"] = parameters
    return operation


def _content(schema: dict[str, Any], kind: str = JSON) -> dict[str, Any]:
    return {kind: {"schema": schema}}


def _event_schema(data: dict[str, Any]) -> dict[str, Any]:
    """Describe one event, whose data is JSON of a schema."""
    encoded = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": encoded}, "required": ["data"]}


def _reference(message: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the reference to a message type (a descriptor), whose schema is added if it is new."""
    if message.full_name in WELL_KNOWN:
        return WELL_KNOWN[message.full_name]
    if message.name not in schemas:
        properties = schemas[message.name] = {"type": "object", "additionalProperties": False}
        properties["properties"] = {field.json_name: _schema(field, schemas) for field in message.fields}
    return {"$ref": f"#/components/schemas/{message.name}"}


def _schema(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        one: dict[str, Any] = {"type": "string", "contentEncoding": "base64"}
    elif field.message_type is not None:
        one = _reference(field.message_type, schemas)
    elif field.enum_type is not None:
        one = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    else:
        one = JSON_TYPES[field.cpp_type]
    return {"type": "array", "items": one} if field.is_repeated else one


def _error_schema() -> dict[str, Any]:
    parts = {
        "code": {"type": "integer"},
        "status": {"type": "string"},
        "message": {"type": "string"},
        "details": {"type": "array", "items": {"type": "object"}},
    }
    error = {"type": "object", "properties": parts, "required": list(parts)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
