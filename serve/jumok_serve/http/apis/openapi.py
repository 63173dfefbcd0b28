"""OpenAPI document of the JSON API, from the descriptors of its messages."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

import jumok_proto

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


def describe_api(methods: Sequence[Method]) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document of methods."""
    schemas: dict[str, Any] = {ERROR: _error_schema()}
    paths: dict[str, Any] = {}
    for method in methods:
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
    content = _reference(method.response.DESCRIPTOR, schemas)
    if method.streams:
        content = _event_schema(content)
    kind = "text/event-stream" if method.streams else "application/json"
    operation: dict[str, Any] = {
        "operationId": method.name.rpartition("/")[2],
        "responses": {
            "200": {
                "description": "Events, each with a response." if method.streams else "The response.",
                "content": {kind: {"schema": content}},
            },
            "default": {
                "description": "An error.",
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{ERROR}"}}},
            },
        },
    }
    in_path = re.findall(r"{(\w+)}", method.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path]
    if method.verb in WITH_BODY:
        schema = _reference(method.request.DESCRIPTOR, schemas)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
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
        one = _enum(field.enum_type)
    else:
        one = JSON_TYPES[field.cpp_type]
    return {"type": "array", "items": one} if field.is_repeated else one


def _enum(enum: EnumDescriptor) -> dict[str, Any]:
    return {"type": "string", "enum": [value.name for value in enum.values]}


def _error_schema() -> dict[str, Any]:
    parts = {
        "code": {"type": "integer"},
        "status": {"type": "string"},
        "message": {"type": "string"},
        "details": {"type": "array", "items": {"type": "object"}},
    }
    error = {"type": "object", "properties": parts, "required": list(parts)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
