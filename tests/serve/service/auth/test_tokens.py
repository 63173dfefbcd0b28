"""Bearer tokens: creation, token file, lookup, and scopes of calls."""

import logging
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from click.testing import CliRunner

from jumok_serve.cli.serve_commands import token as token_command
from jumok_serve.errors import CredentialsError
from jumok_serve.service import Administration
from jumok_serve.service.auth.tokens import TokenFile, make_token
from tests.support.servers.fake_model import FakeModel, failure, received, serving
from tests.support.servers.tokens import Metadata, bearer, tokens_of

CODES = grpc.StatusCode


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def write(file: Path, *lines: str) -> None:
    """Replace the file atomically."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(new, file)


def test_a_secret_is_kept_as_its_hash_alone(file: Path) -> None:
    secret, token = make_token("reports", ["translate"])
    assert len(secret) >= 43  # 256 bits in base64
    assert secret != make_token("reports", ["translate"])[0]
    assert token.line() == f"reports translate sha256:{sha256(secret.encode()).hexdigest()}"
    write(file, "# who asks", "", token.line())
    tokens = TokenFile(file)
    assert tokens.find(secret) == token
    for other in ("", secret[:-1], secret + "a", token.digest.hex(), "\udcff"):
        assert tokens.find(other) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a translate\n", "line 1: must be a name, scopes and a hash"),
        ("# fine\na translate md5:00\n", "line 2: the hash"),
        (f"a translate sha256:{'0' * 63}\n", "line 1: the hash"),
        (f"a write sha256:{'0' * 64}\n", "line 1: scopes must be any of admin, translate, got write"),
        (f"ä translate sha256:{'0' * 64}\n", "line 1: the name 'ä'"),
        (f"a translate sha256:{'0' * 64}\n" * 2, "two tokens are named 'a'"),
        ("a \udcff", "tokens is no file of tokens: byte 3 is not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(file: Path, content: str | None, words: str) -> None:
    if content is not None:
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CredentialsError, match=words):
        TokenFile(file)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, kept = make_token("first", ["translate"])
    second, added = make_token("second", ["translate"])
    write(file, kept.line())
    tokens = TokenFile(file)
    assert tokens.find(second) is None
    write(file, added.line())
    assert tokens.find(second) == added
    assert tokens.find(first) is None
    write(file, kept.line(), "nonsense")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert tokens.find(second) == added
        assert tokens.find(first) is None
    assert len(caplog.records) == 1
    assert "line 2" in caplog.text
    file.unlink()
    assert tokens.find(second) == added


STRANGERS: dict[str, Metadata] = {
    "no token": (),
    "no bearer": (("authorization", "Basic abc"),),
    "an empty token": bearer(""),
    "an unknown token": bearer("jumok_unknown"),
}
BOTH = {"translate", "admin"}
OPENED_BY: dict[str, set[str]] = {
    "jumok.v1.TranslationService/TranslateText": {"translate"},
    "jumok.v1.TranslationService/TranslateCorpus": {"translate"},
    "jumok.v1.FileService/TranslateFile": {"translate"},
    "jumok.v1.GlossaryService/ListGlossaries": {"translate"},
    "jumok.v1.ModelService/ListModels": BOTH,
    "jumok.v1.AdminService/ListBundles": {"admin"},
    "jumok.v1.AdminService/LoadModel": {"admin"},
    "jumok.v1.AdminService/UnloadModel": {"admin"},
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": BOTH,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": BOTH,
    "grpc.health.v1.Health/Check": BOTH | {*STRANGERS, "a cut token"},
}
"""Callers who may call a method: those with a token by its scope."""


@pytest.mark.parametrize("method", OPENED_BY)
async def test_calls_need_a_token_of_the_right_scope(method: str, tmp_path: Path) -> None:
    tokens, secrets = tokens_of(tmp_path, translate="translate", admin="admin")
    unknown = STRANGERS | {"a cut token": bearer(secrets["translate"][:-1])}
    callers = unknown | {name: bearer(secret) for name, secret in secrets.items()}
    administration = Administration(root=tmp_path, load=Mock())
    async with serving(FakeModel(), tokens=tokens, administration=administration) as (_, channel):
        raw: Any = channel  # without serializers, which its types want
        for caller, metadata in callers.items():
            if caller in OPENED_BY[method]:
                call = raw.stream_stream(f"/{method}")(iter([b""]), metadata=metadata)
                with suppress(grpc.aio.AioRpcError):  # the empty request itself may be refused
                    await received(call)
                assert await call.code() not in {CODES.UNAUTHENTICATED, CODES.PERMISSION_DENIED}, caller
                continue
            code, reason, words = (
                (CODES.UNAUTHENTICATED, "UNAUTHENTICATED", "token")
                if caller in unknown
                else (CODES.PERMISSION_DENIED, "NOT_ALLOWED", f"'{caller}'")
            )
            refused = await failure(raw.unary_unary(f"/{method}")(b"", metadata=metadata))
            assert (refused.code, refused.info.reason) == (code, reason), caller
            assert words in refused.message


def test_the_command_makes_a_token_and_its_line(file: Path) -> None:
    done = CliRunner().invoke(token_command, ["reports", "--scope", "translate", "--scope", "admin"])
    assert (done.exit_code, done.stderr) == (0, "")
    secret, line = done.stdout.splitlines()
    write(file, line)
    found = TokenFile(file).find(secret)
    assert found is not None
    assert found.name == "reports"
    assert found.scopes == {"translate", "admin"}


def test_the_command_adds_to_a_file_that_others_cannot_read(file: Path) -> None:
    command = CliRunner()
    secrets = [command.invoke(token_command, [name, "--file", str(file)]).stdout.strip() for name in ("one", "two")]
    tokens = TokenFile(file)
    assert [getattr(tokens.find(secret), "name", None) for secret in secrets] == ["one", "two"]
    assert file.stat().st_mode & 0o077 == 0
    before = file.read_bytes()
    for arguments in (["one", "--file", str(file)], ["no good", "--file", str(file)]):
        refused = command.invoke(token_command, arguments)
        assert refused.exit_code != 0
        assert refused.stdout == ""
        assert arguments[0] in refused.stderr
    assert file.read_bytes() == before


def test_the_command_names_a_folder_that_is_missing(tmp_path: Path) -> None:
    done = CliRunner().invoke(token_command, ["one", "--file", str(tmp_path / "no/tokens")])
    assert done.exit_code == 2
    assert f"the folder {tmp_path / 'no'} does not exist; create it, or choose another" in done.stderr
