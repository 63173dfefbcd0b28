"""A client of another language and gRPC implementation, from the .proto files only: grpc-js."""

import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import google.rpc
import pytest

import jumok
from tests.support.command import serve
from tests.support.hang import HANG_S

PROGRAM = Path(__file__).parent / "grpc_js"
PROTO = Path(__file__).parents[3] / "proto"
GOOGLE = Path(next(iter(google.rpc.__path__))).parents[1]
CALLS_BEFORE = 6
"""Calls of the program before the one to be refused by the rate limit."""
TEXT = "a man in a blue shirt"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("grpc-js")
    for file in PROGRAM.iterdir():
        shutil.copy(file, folder)
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    installed = subprocess.run(
        ["npm", "install", *quiet], cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install grpc-js here: {installed.stderr.strip()[-300:]}")
    return folder


def test_a_client_with_nothing_but_the_proto_files_is_served(program: Path, tiny_bundle: Path) -> None:
    limits = ("--requests-per-second", "0.001", "--request-burst", str(CALLS_BEFORE + 1))
    with serve(tiny_bundle, *limits) as (_, address):
        with jumok.Client(address) as client:
            expected = client.translate(TEXT, beam_size=2)
        done = subprocess.run(
            ["node", "client.js", address, TEXT, str(PROTO), str(GOOGLE)],
            cwd=program,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert [model["name"] for model in found["models"]] == ["tiny-en-de"]
    (translation,) = found["translated"]["translations"]
    best = translation["hypotheses"][0]
    assert (best["text"], best["tokens"]) == (expected.text, list(expected.hypotheses[0].tokens))
    assert best["score"] == pytest.approx(expected.hypotheses[0].score, abs=1e-4)
    assert best["finishReason"] == f"FINISH_REASON_{expected.hypotheses[0].finish_reason.name}"
    check_stream(found["streamed"], expected.text)
    good, bad = found["corpus"]
    assert (good["id"], good["translation"]["hypotheses"][0]["text"]) == ("7", expected.text)
    assert (bad["id"], bad["error"]["code"]) == ("8", 3)
    check_errors(found)


def check_stream(messages: list[dict[str, Any]], expected: str) -> None:
    """Stable texts grow to the translation."""
    sure = [message["stableText"] for message in messages]
    assert all(after.startswith(before) for before, after in pairwise(sure))
    assert sure[-1] == expected
    assert messages[-1]["translation"]["hypotheses"][0]["text"] == expected


def check_errors(found: dict[str, Any]) -> None:
    """All details of an error were read."""
    for name, code, reason in (
        ("badOption", "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ("unknownModel", "NOT_FOUND", "MODEL_NOT_FOUND"),
        ("tooOften", "RESOURCE_EXHAUSTED", "RATE_LIMITED"),
    ):
        error = found[name]
        assert (error["code"], error["ErrorInfo"]["reason"], error["ErrorInfo"]["domain"]) == (code, reason, "jumok")
        assert error["RequestInfo"]["requestId"] == error["ErrorInfo"]["metadata"]["request_id"]
    (violation,) = found["badOption"]["BadRequest"]["fieldViolations"]
    assert violation["field"] == "options.beam_size"
    assert "1000" in violation["description"]
    resource = found["unknownModel"]["ResourceInfo"]
    assert (resource["resourceName"], resource["description"]) == ("nothing", "available: tiny-en-de")
    assert 900 < found["tooOften"]["RetryInfo"]["retryDelay"]["seconds"] <= 1000
