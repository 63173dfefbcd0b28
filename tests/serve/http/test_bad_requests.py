"""Requests that are no requests: wrong bodies, endless bodies, header bombs, smuggling shapes, slow clients."""

import gc
import gzip
import json
import select
import socket
import ssl
import sys
import threading
import time
import tracemalloc
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from jumok_serve.http import port
from jumok_serve.http.port import MAX_RECEIVE
from jumok_serve.service.auth.tls import TlsFiles
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S
from tests.support.servers.certificates import Authority
from tests.support.servers.http_server import HEALTH, Served, call, serving_http

LIMITS = ServiceLimits(max_message_bytes=64 * 1024)
MAX_CONNECTIONS = 8
GOOD = json.dumps({"q": "a dog", "source": "en", "target": "de"}).encode()
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def bounded(translator: Translator) -> Iterator[Served]:
    """A server that takes little."""
    with serving_http(translator, limits=LIMITS) as served:
        yield served


def converse(served: Served, sent: bytes) -> bytes:
    """Send bytes, and read until the server closes."""
    with served.connect() as connection:
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            return b""
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = bytearray()
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return bytes(received)


def read_until(connection: socket.socket, end: bytes) -> None:
    received = bytearray()
    while not received.endswith(end):
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk


def send_until_cut(connection: socket.socket, piece: bytes) -> None:
    """Send a piece again and again, until the server closes the connection."""
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_forever(connection, piece)


def send_until_closed(connection: socket.socket, piece: bytes) -> None:
    """Send until the socket is closed on this side or the other."""
    with suppress(OSError):
        send_forever(connection, piece)


def send_forever(connection: socket.socket, piece: bytes) -> None:
    while True:
        connection.sendall(piece)


def framed(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in (*headers, b"Content-Length: %d" % len(body)))
    return HEAD + lines + b"\r\n" + body


def statuses(received: bytes) -> list[int]:
    """Status of each response."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


NO_OBJECT = "no JSON object"
MANY = "more than 5120 values; send several requests"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"{", NO_OBJECT, id="cut"),
        pytest.param(b"[]", NO_OBJECT, id="list"),
        pytest.param(b'"q"', NO_OBJECT, id="string"),
        pytest.param(b"null", NO_OBJECT, id="null"),
        pytest.param(b"\xff\xfe", NO_OBJECT, id="bytes"),
        pytest.param(b"[" * 5_000, NO_OBJECT, id="brackets"),
        pytest.param(b'{"q": ' * 5_000, NO_OBJECT, id="nested"),
        pytest.param(b'{"q": 1' + b"0" * 9_000 + b"}", NO_OBJECT, id="digits"),
        pytest.param(b"\0", NO_OBJECT, id="zero"),
        pytest.param(b'{"q": [' + b"[]," * 20_000 + b"[]]}", MANY, id="many lists"),
        pytest.param(b'{"q": ["' + b'","' * 20_000 + b'"]}', MANY, id="many strings"),
        pytest.param(b"{" * 60_000, MANY, id="many nested"),
        pytest.param(
            b'{"q": "\\\\' + b'\\"' * 20_000 + b'", "a": [' + b"1," * 9_000 + b"1]}", MANY, id="many after a string"
        ),
    ],
)
def test_bodies_are_refused_before_objects_are_made(bounded: Served, body: bytes, words: str) -> None:
    for path in ("/translate", "/v1/text:translate"):
        answer = call(f"{bounded.url}{path}", raw=body, headers={"Content-Type": "application/json"})
        assert (answer.status, words in json.dumps(answer.content)) == (400, True)


def test_marks_in_texts_are_no_values(bounded: Served) -> None:
    text = 'a dog, {a} [man] \\" ' * 2_000
    body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
    answer = call(f"{bounded.url}/translate", raw=body, headers={"Content-Type": "application/json"})
    assert "values" not in json.dumps(answer.content)


def test_forms_that_are_none(bounded: Served) -> None:
    answer = call(f"{bounded.url}/translate", raw=b"q=\xff")
    assert (answer.status, "no form of at most" in answer.content["error"]) == (400, True)
    answer = call(f"{bounded.url}/translate", raw=b"<q/>", headers={"Content-Type": "text/xml"})
    assert "content type 'text/xml'" in answer.content["error"]


def test_unknown_paths_and_methods(bounded: Served) -> None:
    assert call(f"{bounded.url}/../../etc/passwd").status == 404
    assert call(f"{bounded.url}/translate").status == 405
    assert call(f"{bounded.url}/languages", method="DELETE").status == 405
    answer = call(f"{bounded.url}/v1/text:translate")
    assert answer.content["error"] == {
        "code": 405,
        "status": "UNIMPLEMENTED",
        "message": "the path '/v1/text:translate' takes no GET: send POST",
        "details": [],
    }
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert call(f"{bounded.url}/v1/nothing").content["error"]["status"] == "NOT_FOUND"
    assert call(f"{bounded.url}/v2/nothing").content == {
        "message": "the path '/v2/nothing' is unknown: check the address"
    }
    assert call(f"{bounded.url}/translate").content == {"error": "the path '/translate' takes no GET: send POST"}


@pytest.mark.parametrize("coding", ["gzip", "br", "identity"])
def test_compressed_bodies_are_refused_by_their_coding(bounded: Served, coding: str) -> None:
    raw = gzip.compress(GOOD) if coding == "gzip" else GOOD
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    answer = call(f"{bounded.url}/translate", raw=raw, headers=headers)
    if coding == "identity":
        assert answer.status == 200
        return
    assert (answer.status, answer.headers["Accept-Encoding"]) == (415, "identity")
    assert answer.content == {
        "error": f"the body has the content coding {coding!r}: send it without Content-Encoding, as it is"
    }


def test_a_body_over_the_limit_is_refused(bounded: Served) -> None:
    """Twice the limit is still read, so that the client sees the response."""
    answer = call(f"{bounded.url}/translate", {"q": "a" * 80_000, "source": "en", "target": "de"})
    assert answer.status == 413
    assert "at most 65536 bytes" in answer.content["error"]
    assert answer.headers["Connection"] == "close"


def test_a_huge_body_is_cut(bounded: Served) -> None:
    with bounded.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 100000000\r\n\r\n")
        send_until_cut(connection, b"a" * 1_000_000)
    assert call(f"{bounded.url}/health").status == 200


def test_chunks_that_never_end_are_cut(bounded: Served) -> None:
    for path in (b"/translate", b"/nowhere"):
        with bounded.connect() as connection:
            connection.sendall(b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % path)
            send_until_cut(connection, b"400\r\n" + b"a" * 1024 + b"\r\n")


def test_a_body_that_stays_away_is_not_waited_for(translator: Translator) -> None:
    with serving_http(translator, limits=replace(LIMITS, upload_s=0.5)) as served:
        received = converse(served, HEAD + b"Content-Length: 100\r\n\r\n{")
    assert statuses(received) == [504]
    assert b"did not arrive within 0.5 s" in received


def test_a_head_that_stays_away_is_not_waited_for(bounded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with bounded.connect() as connection:  # of the second request of a connection
        connection.sendall(HEALTH)
        read_until(connection, b'"ok"}')
        monkeypatch.setattr(port, "HEAD_S", 0.2)
        connection.sendall(b"GET /hea")
        assert read_all(connection) == b""
    assert converse(bounded, b"") == b""
    assert converse(bounded, b"GET /health HTTP/1.1\r\nHost:") == b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(b"X-%d: %b\r\n" % (i, b"a" * 90) for i in range(10_000)),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
    ],
    ids=["many", "long", "target"],
)
def test_header_bombs_are_cut(bounded: Served, head: bytes) -> None:
    received = converse(bounded, head)
    assert received == b"" or statuses(received) in ([400], [431])


@pytest.mark.parametrize(
    "request_bytes",
    [
        framed(GOOD, b"Transfer-Encoding: chunked"),
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + HEALTH,
        framed(GOOD, b"Content-Length: 3"),
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 0x10\r\n\r\n",
        HEAD + b"Content-Length: 1, 2\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b" folded: line\r\nContent-Length: abc\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_ambiguous_requests_are_refused_and_end_their_connection(bounded: Served, request_bytes: bytes) -> None:
    """No byte after such a request is taken for another request."""
    received = converse(bounded, request_bytes)
    assert statuses(received) in ([400], [501])


def test_pipelined_requests_are_answered_in_order(bounded: Served) -> None:
    last = framed(GOOD, b"Connection: close")
    received = converse(bounded, framed(GOOD) + HEALTH + last)
    assert statuses(received) == [200, 200, 200]
    bodies = [json.loads(part.partition(b"\r\n\r\n")[2]) for part in received.split(b"HTTP/1.1 ")[1:]]
    assert bodies[0] == bodies[2]
    assert bodies[1] == {"status": "ok"}


def test_requests_that_wait_for_others_are_not_read(bounded: Served) -> None:
    """Each answered one would else let a further piece of the connection in."""
    answered = 300
    with bounded.connect() as connection:
        sending = threading.Thread(target=send_until_closed, args=(connection, HEALTH * 1000))
        tracemalloc.start()
        try:
            sending.start()
            received = b""
            while received.count(b"HTTP/1.1") < answered:
                received += connection.recv(4096)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            connection.shutdown(socket.SHUT_RDWR)
            sending.join()
    assert kept < answered * MAX_RECEIVE / 4


@pytest.mark.parametrize("size", [MAX_RECEIVE // 3, MAX_RECEIVE, 3 * MAX_RECEIVE])
def test_pipelined_requests_of_any_size_are_all_answered(bounded: Served, size: int) -> None:
    """The next request may begin in the piece that ends one, and end in another."""
    body = json.dumps({"q": "a dog", "source": "en", "target": "de", "none": "a" * size}).encode()
    received = converse(bounded, framed(body) * 7 + HEALTH + framed(body, b"Connection: close"))
    assert statuses(received) == [200] * 9


def test_trailers_of_many_lines_are_cut(bounded: Served) -> None:
    chunked = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    for path in (b"/translate", b"/health", b"/nowhere"):
        with bounded.connect() as connection:
            connection.sendall(chunked % path)
            send_until_cut(connection, b"a:\n" * 1000)
    few = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(GOOD), GOOD) + b"a: b\r\n" * 100
    assert statuses(converse(bounded, few + b"\r\n" + framed(GOOD, b"Connection: close"))) == [200, 200]
    lines = b"\n" * 10_000
    assert statuses(converse(bounded, HEAD + b"Content-Length: 10000\r\nConnection: close\r\n\r\n" + lines)) == [400]


def test_connections_are_bounded_and_slow_ones_harm_no_other(translator: Translator) -> None:
    with serving_http(translator, limits=ServiceLimits(max_connections=MAX_CONNECTIONS)) as served:
        held = [served.connect() for _ in range(MAX_CONNECTIONS)]
        try:
            *slow, last = held
            for connection in slow:
                connection.sendall(HEAD)
            last.sendall(framed(GOOD))
            assert last.recv(65536).startswith(b"HTTP/1.1 200")
            assert converse(served, HEALTH) == b""
        finally:
            for connection in held:
                connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_one_address_cannot_keep_others_out(translator: Translator) -> None:
    with serving_http(translator, limits=ServiceLimits(max_connections_of_address=2)) as served, ExitStack() as opened:
        held = [opened.enter_context(served.connect()) for _ in range(2)]
        for connection in held:
            connection.sendall(HEALTH)
            read_until(connection, b'{"status":"ok"}')
        assert converse(served, HEALTH) == b""
        other = opened.enter_context(served.connect(of="127.0.0.2"))
        other.sendall(HEALTH)
        read_until(other, b'{"status":"ok"}')
        held.pop().close()
        while True:  # until the server has seen the end of that one
            again = opened.enter_context(served.connect())
            with suppress(ConnectionError):
                again.sendall(HEALTH)
                if again.recv(1):
                    break


def test_a_client_that_reads_nothing_is_disconnected(translator: Translator) -> None:
    """It asks again and again, until neither side's buffers take more."""
    with serving_http(translator, limits=ServiceLimits(upload_s=0.5)) as served, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(HANG_S)
        connection.connect(served.address)
        send_until_cut(connection, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert call(f"{served.url}/health").status == 200


def test_request_ids_are_kept_or_made(bounded: Served) -> None:
    url = f"{bounded.url}/translate"
    assert call(url, {}, headers={"X-Request-Id": "mine-1"}).headers["X-Request-Id"] == "mine-1"
    assert len(call(url, {}, headers={"X-Request-Id": "not usable"}).headers["X-Request-Id"]) == 32
    missing = call(f"{bounded.url}/nowhere")
    assert len(missing.headers["X-Request-Id"]) == 32
    assert missing.headers["Date"].endswith("GMT")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


@pytest.fixture
def tls(authority: Authority) -> TlsFiles:
    certificate, key = authority.issue("server")
    return TlsFiles(certificate=certificate, key=key)


@pytest.fixture
def client(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.root))


def certificate_of(served: Served, client: ssl.SSLContext, of: str | None = None) -> bytes:
    """Return the certificate of a server that answers; empty: it refuses the connection."""
    try:
        with served.connect(of) as raw, client.wrap_socket(raw, server_hostname="localhost") as connection:
            connection.sendall(HEALTH.replace(b"Host", b"Connection: close\r\nHost"))
            answered = b'"ok"' in read_all(connection)
            return (connection.getpeercert(binary_form=True) or b"") if answered else b""
    except (ssl.SSLError, ConnectionError):
        return b""


def test_tls_serves_the_current_certificate(
    translator: Translator, authority: Authority, tls: TlsFiles, client: ssl.SSLContext
) -> None:
    with serving_http(translator, tls=tls) as served:
        first = certificate_of(served, client)
        assert first
        assert certificate_of(served, client) == first
        authority.issue("server")
        assert certificate_of(served, client) not in {first, b""}
        assert statuses(converse(served, HEALTH)) == []


def test_a_connection_that_sends_nothing_takes_little_memory(translator: Translator, tls: TlsFiles) -> None:
    with serving_http(translator, tls=tls) as served, served.connect():
        for _ in range(1000):
            made = [one for one in gc.get_objects() if type(one) is SSLProtocol]
            if made:
                break
            converse(served, HEALTH)
        assert [len(one._ssl_buffer) for one in made] == [port.MAX_RECEIVE] * len(made)  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x40\x00\x01"], ids=["silent", "begun"])
def test_connections_before_their_handshake_are_bounded(
    translator: Translator, tls: TlsFiles, client: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(port, "TLS_S", HANG_S)
    limits = ServiceLimits(max_connections=7, max_connections_of_address=3)
    with serving_http(translator, tls=tls, limits=limits) as served, ExitStack() as opened:

        def silent(of: str) -> list[socket.socket]:
            """Connect ten times; returns those that stay open."""
            made = [opened.enter_context(served.connect(of=of)) for _ in range(10)]
            for connection in made:
                with suppress(ConnectionError):
                    connection.sendall(sent)
            closed: list[socket.socket] = []
            while len(closed) < 7:
                closed += select.select([one for one in made if one not in closed], [], [], HANG_S)[0]
            return [one for one in made if one not in closed]

        kept = silent("127.0.0.1") + silent("127.0.0.2")
        assert len(kept) == 6
        assert not certificate_of(served, client, "127.0.0.1")
        assert certificate_of(served, client, "127.0.0.3")
        front = served.server.front
        assert front is not None
        while front.open_connections > len(kept):  # until the server has seen the end of that one
            time.sleep(0.001)
        last = opened.enter_context(served.connect(of="127.0.0.4"))
        assert not certificate_of(served, client, "127.0.0.3")
        assert front.open_connections == 7
        for connection in (*kept, last):
            connection.close()
        while not certificate_of(served, client, "127.0.0.1"):  # until the server has seen their end
            pass


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x40\x00\x01"], ids=["silent", "begun"])
def test_a_handshake_that_stays_away_is_not_waited_for(
    translator: Translator, tls: TlsFiles, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(port, "TLS_S", 0.2)
    with serving_http(translator, tls=tls) as served:
        assert converse(served, sent) == b""


def test_mutual_tls_needs_a_certificate(
    translator: Translator, authority: Authority, tls: TlsFiles, client: ssl.SSLContext
) -> None:
    with serving_http(translator, tls=replace(tls, client_ca=authority.root)) as served:
        assert not certificate_of(served, client)
        client.load_cert_chain(*authority.issue("client"))
        assert certificate_of(served, client)
