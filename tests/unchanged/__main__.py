"""Compare this checkout with another one: answers over gRPC and HTTP, errors, and help texts.

    git worktree add /tmp/before COMMIT
    python -m tests.unchanged /tmp/before

Both serve the same models, one call at a time. Times, ids and dates are left out of the comparison. Exits with 1 if
anything differs.
"""

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.faults.scenarios.fuzzing import SERVICES, likely_values
from tests.faults.tools.random_messages import each_random_call
from tests.unchanged.calls import SHORT, GrpcCall, HttpCall, grpc_calls, http_calls

ROOT = Path(__file__).parents[2]
SOURCES = ("serve", "proto", "clients/python", "export")
MODELS = ("multi30k-en-de-transformer", "software-en-ko", "software-ko-en")
RANDOM_CALLS = 1500
SEED = 7
UNSTEADY = frozenset({"timings", "id", "create_time", "queue_duration", "encode_duration", "decode_duration"})
"""Fields that differ from run to run."""
UNSTEADY_HEADERS = frozenset({"date", "retry-after", "content-length"})
UNSTEADY_TEXTS = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.+Z]+|\"\w+Duration\":\s*\"[\d.]+s\"|127\.0\.0\.1:\d+"
    r"|\b\d+(\.\d+)?(e-\d+)? s\b|request id \w+|\b[0-9a-f]{32}\b"
)


class Answer(NamedTuple):
    """Status and content that a call got."""

    status: str
    content: str


@contextmanager
def serving(checkout: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Serve the models with a checkout; gives the addresses of gRPC and HTTP."""
    command = (sys.executable, "-m", "jumok", "serve", *(str(ROOT / "models" / name) for name in MODELS))
    options = ("--port", "0", "--http-port", "0", "--threads", "1", "--replicas", "1", "--glossaries", str(folder))
    with (
        open(folder / "log", "w", encoding="utf-8") as log,
        subprocess.Popen(
            (*command, *options, "--requests-per-second", "100000"),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_environment(checkout),
            cwd=folder,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            addresses = re.findall(r"127\.0\.0\.1:\d+", line)
            if len(addresses) < 2:
                raise SystemExit(f"{checkout} does not serve: {line}{(folder / 'log').read_text(encoding='utf-8')}")
            over_http = re.search(r"HTTP on (127\.0\.0\.1:\d+)", line)
            assert over_http is not None
            yield next(one for one in addresses if one != over_http[1]), over_http[1]
        finally:
            process.terminate()


def _environment(checkout: Path) -> dict[str, str]:
    path = os.pathsep.join(str(checkout / source) for source in SOURCES)
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "COLUMNS": "100"}


def help_texts(checkout: Path, *words: str) -> str:
    """Return the help of a command, and of all below it."""
    command = (sys.executable, "-m", "jumok", *words, "--help")
    environment = _environment(checkout)
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    _, _, listed = found.partition("\nCommands:\n")
    names = re.findall(r"^  (\S+)", listed, re.MULTILINE)
    return "\n".join((f"jumok {' '.join(words)}", found, *(help_texts(checkout, *words, name) for name in names)))


def ask_grpc(channel: grpc.Channel, call: GrpcCall) -> Answer:
    """Send a call, and return the last state that it had."""
    method = _METHODS[call.method]
    return _asked(channel, method, [message.SerializeToString() for message in call.messages])


def _asked(channel: grpc.Channel, method: MethodDescriptor, requests: Sequence[bytes]) -> Answer:
    path = f"/{method.containing_service.full_name}/{method.name}"
    stub = channel.stream_stream(
        path, request_serializer=None, response_deserializer=GetMessageClass(method.output_type).FromString
    )
    responses = stub(iter(requests), timeout=60, metadata=(("x-request-id", "compared"),))
    found: list[Message] = []
    try:
        found += responses
        status = "OK"
    except grpc.RpcError as error:
        details = [one.value for one in error.trailing_metadata() or () if one.key == "grpc-status-details-bin"]
        status = f"{error.code().name}: {error.details()} {details!r}"
    for message in found:
        _clear(message)
    return Answer(UNSTEADY_TEXTS.sub("", status), _joined(method, found))


def _joined(method: MethodDescriptor, found: Sequence[Message]) -> str:
    """Return what a caller has in the end: messages of a stream are cut as they come."""
    if not method.server_streaming or not found:
        return repr([message.SerializeToString(deterministic=True) for message in found])
    if method.name == "StreamTranslateText":
        return str(found[-1])
    whole = GetMessageClass(method.output_type)()
    data = b""
    for message in found:
        data += getattr(message, "file", b"")
        whole.MergeFrom(message)
    if data:
        whole.ClearField("file")
    results = getattr(whole, "results", None)
    if results is not None:
        return str(sorted(map(str, results)))
    return f"{data!r} {whole}"


def _clear(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name in UNSTEADY and field.cpp_type in {
            FieldDescriptor.CPPTYPE_MESSAGE,
            FieldDescriptor.CPPTYPE_STRING,
        }:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                _clear(part)


def ask_http(address: str, call: HttpCall) -> Answer:
    """Send a request over HTTP."""
    connection = HTTPConnection(address, timeout=60)
    headers = {
        "X-Request-Id": "compared",
        **({} if call.data is None else {"Content-Type": call.kind}),
        **dict(call.headers),
    }
    connection.request(call.verb, call.path, call.data, headers)
    response = connection.getresponse()
    kept = {name: value for name, value in response.getheaders() if name.lower() not in UNSTEADY_HEADERS}
    content = response.read().decode("utf-8", "replace")
    connection.close()
    if response.headers.get_content_type() == "text/event-stream":
        content = _last_state([json.loads(line.removeprefix("data: ")) for line in content.splitlines() if line])
    return Answer(f"{response.status} {kept}", UNSTEADY_TEXTS.sub("", content))


def _last_state(events: Sequence[dict[str, Any]]) -> str:
    """Return the last of several events, with the bytes of all: they are cut as they come."""
    data = b"".join(base64.b64decode(event.pop("file", "")) for event in events)
    return f"{data!r} {json.dumps(events[-1:])}"


class Differences:
    """Counts what was compared, and prints what differs."""

    def __init__(self) -> None:
        self.compared = self.found = 0

    def note(self, what: object, before: object, after: object) -> None:
        """Compare two results."""
        self.compared += 1
        if before != after:
            self.found += 1
            print(
                f"DIFFERS: {str(what)[:600]}\n  before: {str(before)[:1500]}\n  after:  {str(after)[:1500]}", flush=True
            )


def compare(before: Path, after: Path, *, random_calls: int) -> Differences:
    """Compare two checkouts."""
    differences = Differences()
    differences.note("help texts", help_texts(before), help_texts(after))
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        servers = [stack.enter_context(serving(*pair)) for pair in zip((before, after), folders, strict=True)]
        channels = [stack.enter_context(grpc.insecure_channel(address)) for address, _ in servers]

        def each(what: object, ask: Callable[[int], Answer]) -> None:
            differences.note(what, ask(0), ask(1))

        for call in grpc_calls():
            each(call, lambda side, call=call: ask_grpc(channels[side], call))  # type: ignore[misc]
        for request in http_calls():
            each(request, lambda side, request=request: ask_http(servers[side][1], request))  # type: ignore[misc]

        def send(call: Any) -> None:
            if call.method.name == "Watch":  # which does not end
                return
            text = str(call)
            answers = [_asked(channels[side], call.method, call.data) for side in range(2)]
            unseeded = ("sample: true" in text or "temperature" in text or "top_" in text) and "seed" not in text
            shown = [answer.status if unseeded else answer for answer in answers]
            differences.note(text, *shown)

        likely = likely_values(MODELS[0], (SHORT, "a dog", "<b>a</b> man."))
        each_random_call(SERVICES, likely, send, count=random_calls, seed=SEED)
    return differences


_METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}


def main() -> int:
    """Compare with the checkout that the arguments name."""
    parser = argparse.ArgumentParser(description="Compare the answers of this checkout with those of another one.")
    parser.add_argument("before", type=Path, help="root of the other checkout, its native kernels compiled")
    parser.add_argument("--random-calls", type=int, default=RANDOM_CALLS, help="default: %(default)s")
    arguments = parser.parse_args()
    differences = compare(arguments.before.resolve(), ROOT, random_calls=arguments.random_calls)
    print(f"{differences.compared} compared, {differences.found} differ")
    return int(differences.found > 0)


if __name__ == "__main__":
    sys.exit(main())
