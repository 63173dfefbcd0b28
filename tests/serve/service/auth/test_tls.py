"""TLS and mutual TLS between server and SDK, and certificates that are replaced while calls run."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

import jumok
from jumok_serve.errors import CredentialsError
from jumok_serve.service.auth.tls import TlsFiles
from tests.support.hang import HANG_S
from tests.support.servers.certificates import Authority
from tests.support.servers.fake_model import FakeModel, serving
from tests.support.servers.tokens import tokens_of

CALLERS = 4


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("stranger"))


def files(authority: Authority, name: str = "server", host: str = "localhost", **others: Path) -> TlsFiles:
    certificate, key = authority.issue(name, host)
    return TlsFiles(certificate=certificate, key=key, **others)


def client(port: int, **settings: Any) -> jumok.AsyncClient:
    return jumok.AsyncClient(f"localhost:{port}", timeout_s=HANG_S, **settings)


async def is_served(port: int, tls: jumok.Tls | None, **settings: Any) -> bool:
    async with client(port, tls=tls, **settings) as caller:
        try:
            return (await caller.translate("a")).text == "A"
        except jumok.UnavailableError:
            return False


async def presented(port: int, authority: Authority) -> bytes:
    """Certificate shown to a new connection, in DER."""
    context = ssl.create_default_context(cafile=str(authority.root))
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(shown)


def der(certificate: Path) -> bytes:
    pem = certificate.read_text(encoding="ascii")
    return ssl.PEM_cert_to_DER_cert(pem[: pem.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n")


async def test_a_client_that_trusts_the_authority_is_served(authority: Authority) -> None:
    async with serving(FakeModel(), host="localhost", tls=files(authority)) as (server, _):
        assert await is_served(server.port, jumok.Tls(root_certificates=authority.root))
        for tls in (None, jumok.Tls()):  # plain text, and the public authorities
            assert not await is_served(server.port, tls)


async def test_another_name_can_be_expected(authority: Authority) -> None:
    async with serving(FakeModel(), host="localhost", tls=files(authority, "inner", "inner.example")) as (server, _):
        assert not await is_served(server.port, jumok.Tls(root_certificates=authority.root))
        tls = jumok.Tls(root_certificates=str(authority.root), override_name="inner.example")
        assert await is_served(server.port, tls)


async def test_mutual_tls_wants_a_certificate_of_the_right_authority(authority: Authority, stranger: Authority) -> None:
    tls = files(authority, "mutual", client_ca=authority.root)
    async with serving(FakeModel(), host="localhost", tls=tls) as (server, _):
        for signer, served in ((authority, True), (stranger, False), (None, False)):
            shown: dict[str, Any] = {}
            if signer is not None:
                certificate, key = signer.issue("client")
                shown = {"client_certificate": certificate, "client_key": key}
            tls_of_client = jumok.Tls(root_certificates=authority.root, **shown)
            assert await is_served(server.port, tls_of_client) is served


async def test_replaced_certificates_reach_new_connections_only(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old_certificate, old_key = authority.issue("old")
    new_certificate, new_key = authority.issue("new")
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    certificate.write_bytes(old_certificate.read_bytes())
    key.write_bytes(old_key.read_bytes())
    trusted = jumok.Tls(root_certificates=authority.root)
    tls = TlsFiles(certificate=certificate, key=key)
    async with serving(FakeModel(), host="localhost", tls=tls) as (server, _), client(server.port, tls=trusted) as one:
        stop = asyncio.Event()
        answered = [0] * CALLERS

        async def call(number: int) -> None:
            while not stop.is_set():
                assert (await one.translate("a")).text == "A"
                answered[number] += 1

        async def everybody_is_answered() -> None:
            before = list(answered)
            while any(now <= then for now, then in zip(answered, before, strict=True)):
                await asyncio.wait(callers, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
                assert not any(caller.done() for caller in callers)

        callers = [asyncio.create_task(call(number)) for number in range(CALLERS)]
        await everybody_is_answered()
        assert await presented(server.port, authority) == der(old_certificate)
        with caplog.at_level(logging.INFO):
            new_certificate.replace(certificate)
            assert await presented(server.port, authority) == der(old_certificate)  # its key is not there yet
            assert "stays in force" in caplog.text
            await everybody_is_answered()
            new_key.replace(key)
            assert await presented(server.port, authority) == der(certificate) != der(old_certificate)
        await everybody_is_answered()
        async with client(server.port, tls=trusted) as another:
            assert (await another.translate("a")).text == "A"
        stop.set()
        await asyncio.gather(*callers)


def test_files_that_cannot_be_used_are_refused(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    _, other_key = stranger.issue("server")
    locked = tmp_path / "locked.key"
    private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate", encoding="ascii")
    for tls, words in (
        (TlsFiles(certificate=certificate, key=other_key), "mismatch"),
        (TlsFiles(certificate=certificate, key=locked), "password"),
        (TlsFiles(certificate=nonsense, key=key), "cannot be used: .*nonsense.pem has no certificate in PEM"),
        (TlsFiles(certificate=certificate, key=nonsense), "cannot be used: .*nonsense.pem has no private key in PEM"),
        (
            TlsFiles(certificate=certificate, key=key, client_ca=nonsense),
            "cannot be used: .*nonsense.pem has no certificate in PEM",
        ),
        (TlsFiles(certificate=tmp_path / "missing.pem", key=key), "missing.pem"),
    ):
        with pytest.raises(CredentialsError, match=words):
            tls.credentials()


async def test_a_token_travels_over_tls_alone(authority: Authority, tmp_path: Path) -> None:
    tokens, secrets = tokens_of(tmp_path, sdk="translate")
    trusted = jumok.Tls(root_certificates=authority.root)
    async with serving(FakeModel(), host="localhost", tls=files(authority), tokens=tokens) as (server, _):
        assert await is_served(server.port, trusted, token=secrets["sdk"])
        with pytest.raises(jumok.UnauthenticatedError) as caught:
            await is_served(server.port, trusted)
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.request_id


def test_what_makes_no_sense_is_refused_before_anything_is_sent() -> None:
    for settings, words in (
        ({"token": "secret"}, "without TLS"),
        ({"token": "a\nb", "tls": jumok.Tls()}, "printable ASCII"),
        ({"token": "", "tls": jumok.Tls()}, "printable ASCII"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            jumok.Client("localhost:1", **settings)
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="client_certificate and client_key"):
        jumok.Tls(client_key="key.pem")
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        jumok.Client("localhost:1", tls=jumok.Tls(root_certificates="no-such-file"))
