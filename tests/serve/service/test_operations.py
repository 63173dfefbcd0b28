"""A server in operation: configuration file, TLS, tokens, metrics, and commands."""

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

import jumok
from tests.support.command import JUMOK, run, run_here
from tests.support.hang import HANG_S
from tests.support.servers.certificates import Authority


def test_a_configured_server_serves_those_it_should(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.make(tmp_path / "tls")
    certificate, key = authority.issue("server")
    tokens = tmp_path / "tokens"
    secret = run_here("token", "reports", "--file", tokens).stdout.decode().strip()
    settings = {
        "bundles": [str(tiny_bundle)],
        "host": "localhost",
        "port": 0,
        "metrics_port": 0,
        "threads": 1,
        "max_texts": 2,
        "tls_certificate": str(certificate),
        "tls_key": str(key),
        "tokens": str(tokens),
        "log_format": "json",
        "log_requests": True,
    }
    config = tmp_path / "jumok.toml"
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()), encoding="utf-8")
    with subprocess.Popen(
        [*JUMOK, "serve", "--config", str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            serving = re.match(r"serving on (\S+): tiny-en-de .*; metrics on (\S+)$", process.stdout.readline())
            assert serving is not None
            address, metrics = serving.groups()
            here = ["--server", address, "--tls-ca", str(authority.root)]
            assert run_here("health", *here, "--model", "tiny-en-de").returncode == 0
            refused = run_here("translate", *here, "a man")
            assert refused.returncode == 1
            assert b"needs a token" in refused.stderr
            monkeypatch.setenv("JUMOK_TOKEN", secret)
            translated = run_here("translate", *here, "a man")
            assert translated.returncode == 0
            tls = jumok.Tls(root_certificates=authority.root)
            with jumok.Client(address, tls=tls, token=secret, timeout_s=HANG_S) as client:
                assert f"{client.translate('a man').text}\n" == translated.stdout.decode()
                with pytest.raises(jumok.InvalidArgumentError) as caught:
                    client.translate(["a", "b", "c"])
            assert caught.value.field == "contents"
            with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=HANG_S) as answer:
                scraped = answer.read().decode()
            assert 'jumok_translated_texts_total{model="tiny-en-de"} 2.0' in scraped
            assert "process_cpu_seconds_total" in scraped
            assert "reports" not in scraped
        finally:
            process.send_signal(signal.SIGTERM)
            _, logged = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    calls = [
        line
        for line in map(json.loads, re.findall(r"^\{.*", logged, re.MULTILINE))
        if line["logger"] == "jumok_serve.calls"
    ]
    assert [(call["code"], call.get("caller")) for call in calls] == [
        ("UNAUTHENTICATED", None),
        ("OK", "reports"),
        ("OK", "reports"),
        ("INVALID_ARGUMENT", "reports"),
    ]
    assert calls[-1]["request_id"] == caught.value.request_id
    assert secret not in logged


def test_without_opentelemetry_traces_say_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['opentelemetry'] = None; from jumok.__main__ import main; main()"
    done = subprocess.run(
        [JUMOK[0], "-c", hidden, "serve", str(tmp_path), "--traces-endpoint", "http://localhost:4317"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 1
    assert "pip install 'jumok[serve,otel]'" in done.stderr


def test_credentials_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense\n", encoding="utf-8")
    for arguments, words in (
        (["--tokens", nonsense, "--tokens-without-tls"], "line 1: must be a name, scopes and a hash"),
        (["--tls-certificate", nonsense, "--tls-key", nonsense], "cannot be used"),
    ):
        refused = run("serve", tmp_path, *map(str, arguments))  # which is no bundle either
        (line,) = refused.stderr.decode().splitlines()
        assert (refused.returncode, words in line) == (1, True), line
