"""The largest requests: each field of each API in turn fills all that a request may have."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from google.api.annotations_pb2 import http
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from jumok_serve.http.port import MAX_HEAD_BYTES
from jumok_serve.http.requests import FORM, JSON, MAX_FORM_FIELDS
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.request_reader import make_intake
from jumok_serve.text.files.document import FORMATS
from tests.serve.http.fuzz.other_apis import BODIES, PAIR, WITHOUT_BODY

Path: TypeAlias = tuple[FieldDescriptor, ...]
"""A field, after the messages that it is in."""

ROOM = 8192
"""Bytes of a request besides the field that fills it."""
HEAD_ROOM = 8192
METADATA = 8192
"""Bytes of header fields that gRPC takes in any case."""
PATTERNS = {
    "letters": "a",
    "words": "a man ",
    "sentences": "A man. ",
    "emoji": "\U0001f600",
    "accents": "\u0301",
    "white space": " ",
    "escapes": '"\\\n\x01',
    "tags": "<b>a</b>",
    "open tags": "<b>",
    "attributes": "<a b='c'/>",
    "entities": "&amp;",
    "brackets": "<",
    "placeholders": "{a} ",
    "stars": "a*",
    "lines": "a\tb\n",
    "commas": "a,",
}
"""Fillings of texts."""
PLAIN = ("letters", "emoji", "escapes", "commas")
"""Those of fields that are not texts."""
TEXTS = frozenset({"content", "contents", "targets", "target_prefix", "target_prefixes", "tsv", "file", "q", "text"})
TEXTS |= {"source", "patterns", "entries"}
SWITCHED = ("words", "sentences", "tags", "emoji")
"""Patterns of texts that are tried with each switch."""

PLAUSIBLE: Mapping[str, Any] = {
    "contents": ["a man"],
    "content": "a man",
    "targets": ["a man"],
    "CreateGlossaryRequest.name": "large",
    "GetModelRequest.name": "",
    "glossary": "large",
    "tsv": "a\tb\n",
    "format": "text",
    "file": "YSBtYW4K",
    "max_length": 2,
    "beam_size": 1,
    "list_services": "*",
}
"""Values of the other fields, as JSON."""
HOLDERS = frozenset({"settings", "items", "dictionaries", "options", "translation"})
"""Fields whose messages a plausible request has."""
PARALLEL, MOST_PARALLEL = {"targets": "contents", "target_prefixes": "contents"}, 1024
"""Lists that are as long as others, and the most items of these."""
NEEDS: Mapping[str, Mapping[str, Any]] = {"markup_rules": {"markup": "MARKUP_HTML"}}
"""Fields beside others without which they are refused."""
HEADERS = ("authorization", "x-request-id", "content-type", "origin", "accept", "traceparent", "x-more")


def _most_fields(limits: ServiceLimits) -> int:
    """Return the most fields of a message, at all depths."""
    return make_intake(limits).max_fields


class GrpcCall(NamedTuple):
    """A call over gRPC."""

    method: MethodDescriptor
    data: tuple[bytes, ...]
    metadata: tuple[tuple[str, str], ...] = ()


class HttpRequest(NamedTuple):
    """A request over HTTP."""

    verb: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Large(NamedTuple):
    """A request that one field fills.

    Attributes:
        api: and encoding.
        method: method or endpoint.
        field: its name.
        filling: what fills it.
    """

    api: str
    method: str
    field: str
    filling: str
    request: GrpcCall | HttpRequest

    def __str__(self) -> str:
        return f"{self.api} {self.method} {self.field}: {self.filling}"


class Encoding(NamedTuple):
    """Bytes that values take.

    Attributes:
        text: of a text.
        item: of an item of a list, besides its text.
        room: for the field.
    """

    text: Callable[[str], int]
    item: int
    room: int


def _json_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


def _quoted_bytes(text: str) -> int:
    return len(quote(text, safe=""))


def largest_requests(services: Sequence[ServiceDescriptor], limits: ServiceLimits) -> Iterator[Large]:
    """Make all requests: over the APIs of others, gRPC and own JSON."""
    for name in (*BODIES, *WITHOUT_BODY):
        yield from _over_other(name, limits)
    for method in (method for service in services for method in service.methods):
        yield from _over_grpc(method, limits)
        rule = method.GetOptions().Extensions[http]
        if verb := rule.WhichOneof("pattern"):
            yield from _over_json(method, verb.upper(), getattr(rule, verb), limits)


# Contents


def _texts(limits: ServiceLimits, encoding: Encoding, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield texts that fill a message, and texts of the most characters."""
    for name in patterns:
        pattern = PATTERNS[name]
        most = encoding.room // encoding.text(pattern)
        yield f"{name}, all bytes", pattern * most
        if patterns is not PLAIN:
            allowed = min(most, limits.max_characters // len(pattern))
            yield f"{name}, {len(pattern) * allowed} characters", pattern * allowed


def _lists(limits: ServiceLimits, encoding: Encoding, patterns: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for name, text in _texts(limits, encoding, patterns):
        yield f"one of {name}", [text]
    yield "empty ones, all bytes", [""] * (encoding.room // encoding.item)
    for count in (_most_fields(limits) - 64, limits.max_texts, 1000):
        yield f"{count} small ones", [f"{number:x}" for number in range(min(count, encoding.room // 8))]
    for name in PLAIN:
        size = encoding.room // limits.max_texts - encoding.item
        yield (
            f"{limits.max_texts} of {name}",
            [PATTERNS[name] * (size // encoding.text(PATTERNS[name]))] * limits.max_texts,
        )


def _patterns(name: str) -> Iterable[str]:
    return PATTERNS if name in TEXTS else PLAIN


NUMBERS: Mapping[int, Sequence[float]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (float("nan"), float("inf"), float("-inf"), 1.7e308, 5e-324),
    FieldDescriptor.CPPTYPE_BOOL: (True,),
}


def _values(of: FieldDescriptor, limits: ServiceLimits, encoding: Encoding) -> Iterator[tuple[str, Any]]:
    """Yield values of a field, with the names of the fillings."""
    if of.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        make: Callable[..., Iterator[tuple[str, Any]]] = _lists if of.is_repeated else _texts
        for name, value in make(limits, encoding, _patterns(of.name)):
            yield name, value.encode() if of.type == FieldDescriptor.TYPE_BYTES else value
    elif of.message_type is not None:
        if of.is_repeated:
            for count in (encoding.room // encoding.item, _most_fields(limits) - 64, limits.max_texts, 1000):
                yield f"{count} empty ones", [GetMessageClass(of.message_type)() for _ in range(count)]
    elif of.is_repeated:
        for number in NUMBERS[of.cpp_type]:
            most = encoding.room // max(encoding.text(str(number)) + 1, 10)
            for count in {most, min(most, _most_fields(limits) - 64), 200}:
                yield f"{count} times {number}", [number] * count
        yield "ones, all bytes", [1] * (encoding.room // 2)
    else:
        yield from ((str(number), number) for number in NUMBERS[of.cpp_type])


def _fields(message: Descriptor, before: Path = ()) -> Iterator[Path]:
    for of in message.fields:
        path = (*before, of)
        yield path
        if of.message_type is not None and of not in before:
            yield from _fields(of.message_type, path)


def _plausible(message: Descriptor) -> dict[str, Any]:
    """Make a request that is answered, as JSON."""
    tree: dict[str, Any] = {}
    for of in message.fields:
        value = PLAUSIBLE.get(f"{message.name}.{of.name}", PLAUSIBLE.get(of.name))
        if of.message_type is not None:
            value = _plausible(of.message_type) if of.name in HOLDERS else None
            value = [value] if value is not None and of.is_repeated else value
        if value is not None:
            tree[of.json_name] = value
    return tree


def _put(message: Any, path: Path, value: Any) -> None:
    for of in path[:-1]:
        for name, needed in NEEDS.get(of.name, {}).items():
            setattr(message, name, message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_name[needed].number)
        inner = getattr(message, of.name)
        message = inner if not of.is_repeated else inner[0] if len(inner) else inner.add()
    of = path[-1]
    if not of.is_repeated:
        setattr(message, of.name, value)
        return
    message.ClearField(of.name)
    getattr(message, of.name).extend(value)
    other = PARALLEL.get(of.name, "")
    if other in message.DESCRIPTOR.fields_by_name:
        message.ClearField(other)
        getattr(message, other).extend(["a"] * min(len(value), MOST_PARALLEL))


def _switches(message: Descriptor) -> Iterator[tuple[str, Path, int]]:
    """Yield all settings with few values, with each value."""
    for path in _fields(message):
        of = path[-1]
        if of.is_repeated or any(holder.is_repeated for holder in path):
            continue
        if of.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            yield _name(path), path, 1
        elif of.enum_type is not None:
            yield from ((value.name, path, value.number) for value in of.enum_type.values)


def _name(path: Path) -> str:
    return ".".join(of.name for of in path)


# Our APIs


def _filled(method: MethodDescriptor, limits: ServiceLimits, encoding: Encoding) -> Iterator[tuple[str, str, Message]]:
    """Yield messages that each field fills, with its name and the filling."""
    plausible = _plausible(method.input_type)

    def base() -> Any:
        return json_format.ParseDict(plausible, GetMessageClass(method.input_type)())

    for path in _fields(method.input_type):
        for name, value in _values(path[-1], limits, encoding):
            message = base()
            _put(message, path, value)
            yield _name(path), name, message
        if path[-1].name not in {"content", "contents", "file"}:
            continue
        for switch, where, number in _switches(method.input_type):
            for name, text in _texts(limits, encoding, SWITCHED):
                if name.endswith("all bytes"):
                    continue
                message = base()
                of = path[-1]
                _put(message, path, [text] if of.is_repeated else text.encode() if of.name == "file" else text)
                _put(message, where, number)
                yield _name(path), f"{name}, {switch} {number}", message
    if "settings.format" in map(_name, _fields(method.input_type)):
        for file_format in FORMATS:
            for name, text in _texts(limits, encoding, PATTERNS):
                message = base()
                message.settings.format, message.file = file_format, text.encode()
                yield "file", f"{name} as {file_format}", message


def _over_grpc(method: MethodDescriptor, limits: ServiceLimits) -> Iterator[Large]:
    name = f"{method.containing_service.name}.{method.name}"
    encoding = Encoding(text=lambda text: len(text.encode()), item=2, room=limits.max_message_bytes - ROOM)
    for of, filling, message in _filled(method, limits, encoding):
        yield Large("gRPC", name, of, filling, GrpcCall(method, _messages(method, message)))
    base = json_format.ParseDict(_plausible(method.input_type), GetMessageClass(method.input_type)())
    valid = _messages(method, base)
    size = encoding.room
    for filling, data in {
        "bytes": b"\xfa\xff\x3f" + _varint(size) + bytes(size),
        "numbers": b"\xf8\x7f\x01" * (size // 3),
        "empty groups": b"\xfb\x7f\xfc\x7f" * (size // 4),
        "nested groups": b"\xfb\x7f" * (size // 4) + b"\xfc\x7f" * (size // 4),
        "no UTF-8": b"\x0a" + _varint(size) + b"\xff" * size,
        "no length": b"\xff" * size,
    }.items():
        yield Large("gRPC", name, "unknown", filling, GrpcCall(method, (*valid[:-1], valid[-1] + data)))
    for header, filling, value in _header_values(METADATA - 1024):
        if header != "content-type":
            yield Large("gRPC", name, header, filling, GrpcCall(method, valid, ((header, value),)))


def _header_values(most: int) -> Iterator[tuple[str, str, str]]:
    """Yield header fields with the names and values of their fillings."""
    for header in HEADERS:
        for filling in ("letters", "commas"):
            yield header, filling, PATTERNS[filling] * (most // len(PATTERNS[filling]))


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80, number >> 21])


def _messages(method: MethodDescriptor, message: Message) -> tuple[bytes, ...]:
    """Serialize the messages of a call; settings come before the rest."""
    if not method.client_streaming or "settings" not in message.DESCRIPTOR.fields_by_name:
        return (message.SerializeToString(),)
    first = type(message)()
    first.CopyFrom(message)
    for of, _ in message.ListFields():
        (message if of.name == "settings" else first).ClearField(of.name)
    return first.SerializeToString(), message.SerializeToString()


ANY: Mapping[str, Callable[[int], str]] = {
    "digits": lambda size: "9" * size,
    "a fraction": lambda size: "0." + "1" * (size - 2),
    "a text": lambda size: '"' + "a" * (size - 2) + '"',
    "escapes": lambda size: '"' + r"\u00e9" * (size // 6 - 1) + '"',
    "halves of surrogates": lambda size: '"' + r"\ud800" * (size // 6 - 1) + '"',
    "digits as a text": lambda size: '"' + "9" * (size - 2) + '"',
    "1,000 lists": lambda size: "[" * min(900, size // 2) + "]" * min(900, size // 2),
    "4,000 numbers": lambda size: "[" + ",".join(["0"] * min(4000, size // 2 - 1)) + "]",
    "4,000 names": lambda size: "{" + ",".join(f'"{n:x}":0' for n in range(min(4000, size // 8))) + "}",
}
"""Any JSON in place of a field's value."""
WHOLE: Mapping[str, Callable[[int], str]] = {
    **ANY,
    "an exponent": lambda size: "1e" + "9" * (size - 2),
    "a deep list": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "a deep object": lambda size: '{"a":' * (size // 6) + "0" + "}" * (size // 6),
    "a list": lambda size: "[" + "0," * (size // 2 - 2) + "0]",
    "white space": lambda size: " " * (size - 1) + "0",
    "an unknown name": lambda size: '{"' + "a" * (size - 8) + '":0}',
}
"""Any JSON in place of a request."""
_MARK = "the place of other JSON"


def _over_json(method: MethodDescriptor, verb: str, path: str, limits: ServiceLimits) -> Iterator[Large]:
    if verb not in {"POST", "PATCH", "PUT"}:
        yield from _in_head("own", verb, path, [of.name for of in method.input_type.fields])
        return
    size = limits.max_message_bytes - ROOM
    in_path = [of.name for of in method.input_type.fields if f"{{{of.name}}}" in path]

    def large(of: str, filling: str, body: bytes) -> Large:
        return Large("JSON", f"{verb} {path}", of, filling, _request(verb, path, JSON, body))

    for of, filling, message in _filled(method, limits, Encoding(text=_json_bytes, item=3, room=size)):
        if of not in in_path:
            yield large(of, filling, _json(message))
    for place in (place for place in _fields(method.input_type) if place[0].name not in in_path):
        tree = _plausible(method.input_type)
        _put_json(tree, place)
        for filling, raw in ANY.items():
            yield large(_name(place), filling, _with_raw(tree, raw(size)))
    yield from _in_head("own", verb, path, in_path, json.dumps(_plausible(method.input_type)).encode())
    for filling, raw in WHOLE.items():
        yield large("the body", filling, raw(size).encode())
    yield large("the body", "too large", bytes(limits.max_message_bytes + 1))


def _with_raw(tree: Mapping[str, Any], raw: str) -> bytes:
    """Write an object with other JSON in its place."""
    return json.dumps(tree).replace(f'"{_MARK}"', raw).encode()


def _json(message: Message) -> bytes:
    """Write a message without the time that protobuf takes for large ones."""
    return json.dumps(_tree(message), ensure_ascii=False, separators=(",", ":")).encode()


def _tree(message: Message) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for of, value in message.ListFields():
        if of.is_repeated:
            tree[of.json_name] = [_scalar(of, one) for one in value]
        else:
            tree[of.json_name] = _scalar(of, value)
    return tree


def _scalar(of: FieldDescriptor, value: Any) -> Any:
    if of.message_type is not None:
        return _tree(value)
    if of.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value[: len(value) * 2 // 3]).decode()
    if of.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE and not abs(value) < float("inf"):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


def _put_json(tree: dict[str, Any], path: Path) -> None:
    for of in path[:-1]:
        inner = tree.setdefault(of.json_name, [{}] if of.is_repeated else {})
        tree = inner[0] if of.is_repeated else inner
    tree[path[-1].json_name] = [_MARK] if path[-1].is_repeated else _MARK


def _request(verb: str, path: str, kind: str, body: bytes) -> HttpRequest:
    return HttpRequest(verb, _at(path), {"content-type": kind}, body)


def _at(path: str, **values: str) -> str:
    for name in ("glossary", "id", "name"):
        path = path.replace(f"{{{name}}}", values.get(name, "large"))
    return path


def _in_head(api: str, verb: str, path: str, names: Iterable[str], body: bytes = b"") -> Iterator[Large]:
    """Fill path, query string and header fields."""
    most = MAX_HEAD_BYTES - HEAD_ROOM
    headers = {"content-type": JSON} if body else {}

    def large(of: str, filling: str, at: str, more: Mapping[str, str] = {}) -> Large:
        return Large(f"{api} head", f"{verb} {path}", of, filling, HttpRequest(verb, at, {**headers, **more}, body))

    for of in names:
        for filling in PLAIN:
            value = quote(PATTERNS[filling], safe="") * (most // _quoted_bytes(PATTERNS[filling]))
            yield large(of, filling, _at(path, **{of: value}) if f"{{{of}}}" in path else f"{_at(path)}?{of}={value}")
        yield large(of, "many", f"{_at(path)}?" + "&".join([f"{of}=a"] * (most // (len(of) + 3))))
    for header, filling, value in _header_values(most):
        yield large(header, filling, _at(path), {header: value})
    yield large("headers", "many", _at(path), {f"x-{number}": "a" for number in range(most // 12)})


# The APIs of others


def _over_other(name: str, limits: ServiceLimits) -> Iterator[Large]:
    verb, path = name.split(" ")
    if name not in BODIES:
        names = [str(one["name"]) for one in PAIR] if path.endswith(("entries", "dictionaries")) else ["type"]
        yield from _in_head("other", verb, path, [*(["id"] if "{id}" in path else []), *names])
        return
    schemas = BODIES[name]
    base = {of: _first(schemas[of]) for of in schemas if of in OTHERS}
    size = limits.max_message_bytes - ROOM
    encoding = Encoding(text=_json_bytes, item=4, room=size)
    form = Encoding(text=_quoted_bytes, item=10, room=size)

    def large(kind: str, of: str, filling: str, body: bytes) -> Large:
        request = _request(verb, path, JSON if kind == "JSON" else FORM, body)
        return Large(f"other {kind}", name, of, filling, request)

    for of in _names(schemas):
        patterns = _patterns(of.rpartition(".")[2])
        for filling, value in (*_texts(limits, encoding, patterns), *_lists(limits, encoding, patterns)):
            yield large("JSON", of, filling, json.dumps(_with(base, of, value), ensure_ascii=False).encode())
        for filling, raw in ANY.items():
            yield large("JSON", of, filling, _with_raw(_with(base, of, _MARK), raw(size)))
        others = "&".join(f"{other}={quote(str(value))}" for other, value in base.items() if other != of)
        in_form = of.replace("dictionaries.", "dictionaries[0].")
        texts = {filling: quote(text) for filling, text in _texts(limits, form, patterns)}
        for filling, text in (texts | {"plain": "a" * size, "signs": "+" * size, "broken": "%" * size}).items():
            yield large("form", of, filling, f"{others}&{in_form}={text}".encode())
        most = size // (len(in_form) + 3)
        for count in sorted({min(MAX_FORM_FIELDS - 16, most), most}):
            yield large("form", of, f"{count} times", "&".join([others, *[f"{in_form}=a"] * count]).encode())
    in_path = ["id"] if "{id}" in path else []
    yield from _in_head("other", verb, path, [*in_path, *schemas], json.dumps(base).encode())


OTHERS = frozenset({"q", "source", "target", "text", "source_lang", "target_lang", "name", "entries", "entries_format"})
OTHERS |= {"dictionaries"}
"""Fields of the APIs of others that a plausible request has."""


def _first(schema: Mapping[str, Any]) -> Any:
    """Return a value that is accepted."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        return [{of: _first(one) for of, one in schema["items"]["properties"].items()}]
    return "a man"


def _names(schemas: Mapping[str, Any]) -> Iterator[str]:
    for of, schema in schemas.items():
        yield of
        if schema.get("type") == "array":
            yield from (f"{of}.{inner}" for inner in schema["items"]["properties"])


def _with(base: Mapping[str, Any], of: str, value: Any) -> dict[str, Any]:
    holder, _, inner = of.rpartition(".")
    return {**base, **({holder: [{**base[holder][0], inner: value}]} if holder else {of: value})}
