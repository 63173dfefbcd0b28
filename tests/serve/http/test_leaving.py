"""Ends of requests: clients that leave, deadlines, and a stop under load."""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from jumok_serve.http import port
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate
from tests.support.hang import HANG_S, wait_until
from tests.support.servers.http_server import Served, call, head, serving_http
from tests.support.servers.in_process_server import check_idle

BODY = json.dumps({"q": ["a dog", "a man"], "source": "en", "target": "de", "alternatives": 2}).encode()
CLIENTS = 8


def wait_for_cancellation(served: Served) -> None:
    """Wait until the server has seen that the client has left, and cancelled its sentences."""
    wait_until(lambda: served.server.open_calls == 0)


def test_a_client_that_leaves_frees_its_rows_within_one_step(own: Translator) -> None:
    with serving_http(own) as served:
        gate = Gate(own)
        with served.connect() as connection:
            connection.sendall(head("POST", "/translate", len(BODY)) + BODY)
            gate.arrive()
            assert own.load().rows == 10
        wait_for_cancellation(served)
        gate.open()
        check_idle(own)
        assert gate.rows[0] == 10
        assert 10 not in gate.rows[1:]


def test_a_reader_of_a_stream_that_leaves_frees_its_row(own: Translator) -> None:
    body = json.dumps({"content": "a dog", "options": {"beamSize": 1, "minLength": 30, "maxLength": 30}}).encode()
    with serving_http(own) as served:
        gate = Gate(own)
        with served.connect() as connection:
            connection.sendall(head("POST", "/v1/text:streamTranslate", len(body)) + body)
            gate.arrive()
            for _ in range(8):
                gate.step()
            received = b""
            while b"data: " not in received:
                piece = connection.recv(65536)
                assert piece, received
                received += piece
        wait_for_cancellation(served)
        gate.open()
        check_idle(own)


def test_a_late_response_is_given_up(own: Translator) -> None:
    with serving_http(own, front={"timeout_s": 0.5}) as served:
        gate = Gate(own)
        answer = call(f"{served.url}/translate", json.loads(BODY))
        assert answer.status == 504
        gate.open()
        check_idle(own)


def test_a_stop_without_grace_answers_running_requests(own: Translator) -> None:
    answers = []
    with serving_http(own) as served:
        gate = Gate(own)
        asking = threading.Thread(target=lambda: answers.append(call(f"{served.url}/translate", json.loads(BODY))))
        asking.start()
        gate.arrive()
    asking.join(HANG_S)
    gate.open()
    assert [one.status for one in answers] == [503]
    assert "is being stopped" in answers[0].content["error"]
    assert answers[0].headers["Connection"] == "close"


def test_a_stop_does_not_wait_for_a_body_that_stays_away(own: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "LAST_REQUESTS_S", 0.05)
    with serving_http(own) as served, served.connect() as connection:
        front = served.server.front
        assert isinstance(front, port.HttpPort)
        assert front._server is not None
        connection.sendall(head("POST", "/translate", len(BODY)) + BODY[:10])
        wait_until(lambda: any(body.received == 10 for body in list(front.application.site.reading.values())))
        stopping = asyncio.run_coroutine_threadsafe(front.stop(10 * HANG_S), front._server.get_loop())
        stopping.result(HANG_S)
        received = connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 503")
    assert b"is being stopped" in received


PATIENT = """
import jumok_serve.http.port as port
from jumok.__main__ import main
port.LAST_REQUESTS_S = 20.0
main()
"""
"""A server that waits longer for the next request of its connections, for clients on a busy machine."""


def test_sigterm_under_load_loses_no_request(tiny_bundle: Path) -> None:
    """Each client sends its next request on the same connection, until the server refuses new connections."""
    command = [sys.executable, "-c", PATIENT, "serve", "--port=0", "--http-port=0", "--threads=1", str(tiny_bundle)]
    found: Counter[str] = Counter()
    lock = threading.Lock()
    answered = [0] * CLIENTS
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.strip().rpartition("HTTP on ")[2]

        def load(client: int) -> None:
            connection = http.client.HTTPConnection(address, timeout=HANG_S)
            while True:
                try:
                    if connection.sock is None:
                        connection.connect()
                except OSError:
                    return
                try:
                    connection.request("POST", "/translate", BODY, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    status = str(response.status)
                    assert len(json.load(response)["translatedText"]) == 2
                except (OSError, http.client.HTTPException, KeyError) as error:
                    status = f"lost: {error!r}"
                    connection.close()
                with lock:
                    found[status] += 1
                    answered[client] += 1

        clients = [threading.Thread(target=load, args=(number,)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        wait_until(lambda: min(answered) >= 4)  # so every connection is accepted
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join(HANG_S)
        _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    assert set(found) == {"200"}, (found, errors)
    assert "Traceback" not in errors
