"""Changes to a server's files: certificates that are replaced, and a disk that is full or read-only."""

import asyncio
import signal
import ssl
import subprocess
import tempfile
from pathlib import Path

import jumok
from benchmarks.common.progress import progress
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import is_healthy, jumok_serve
from tests.support.servers.certificates import Authority

REPLACED = 10
CALLERS = 4
SHOWN_WITHIN_S = 10.0
CALLS = 50

FULL_LOG = 'exec "$@" 2>/dev/full'
"""Every line of the log fails for lack of space."""
FULL_DISK = (
    'mount -t tmpfs -o size=24m tmpfs "$0" && cp -R "$BUNDLE" "$0/bundle" && '
    '{ head -c 32m /dev/zero >"$0/full" 2>/dev/null; export TMPDIR="$0"; exec "$@" 2>"$0/log"; }'
)
"""Bundle, temporary files and log on a disk without room."""
READ_ONLY = (
    'mount -t tmpfs -o size=24m tmpfs "$0" && cp -R "$BUNDLE" "$0/bundle" && mount -o remount,ro "$0" && '
    '{ export TMPDIR="$0"; exec "$@"; }'
)
"""Bundle and temporary files on a read-only disk."""
MOUNTING = ("unshare", "--mount", "--map-root-user", "--user")
"""With mounts that only the server sees."""


async def certificates(plan: Plan, findings: Findings) -> None:
    """Certificate and key are replaced again and again, one after the other, while old and new connections call."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority.make(folder)
        certificate, key = authority.issue("server")
        files = ("--tls-certificate", certificate, "--tls-key", key)
        async with jumok_serve(plan.bundle, "--host", "localhost", *files) as server:
            tls = jumok.Tls(root_certificates=authority.root)
            stopping = asyncio.Event()
            errors: list[BaseException] = []
            answered = connections = 0

            async def call(*, anew: bool) -> None:
                nonlocal answered, connections
                while not stopping.is_set():
                    connections += 1
                    async with jumok.AsyncClient(server.address, tls=tls, max_attempts=1) as client:
                        try:
                            while not stopping.is_set():
                                await client.translate(plan.texts[answered % len(plan.texts)])
                                answered += 1
                                if anew:
                                    break
                        except jumok.JumokError as error:
                            errors.append(error)
                            return

            calling = [asyncio.create_task(call(anew=bool(number % 2))) for number in range(CALLERS)]
            shown = 0
            for _ in range(REPLACED):
                enough = answered + 10
                while answered < enough and not any(task.done() for task in calling):
                    await asyncio.sleep(0.02)
                authority.issue("server")
                shown += await _is_shown(server.address, authority, certificate)
            stopping.set()
            await asyncio.gather(*calling)
    findings.expect_equal("replaced certificates that were shown then", shown, REPLACED)
    findings.expect_more("connections meanwhile", connections, CALLERS)
    findings.expect_at_least("calls meanwhile", answered, 10 * REPLACED, "d")
    findings.expect_none("of these that failed", errors)


async def _is_shown(address: str, authority: Authority, certificate: Path) -> bool:
    """True if new connections soon see the present certificate."""
    context = ssl.create_default_context(cafile=str(authority.root))
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    wanted = ssl.PEM_cert_to_DER_cert(
        certificate.read_text(encoding="ascii").split("-----END")[0] + "-----END CERTIFICATE-----\n"
    )
    for _ in range(round(SHOWN_WITHIN_S / 0.1)):
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        if found == wanted:
            return True
        await asyncio.sleep(0.1)
    return False


async def disks(plan: Plan, findings: Findings) -> None:
    """A server starts and runs where nothing can be written, and logs every call."""
    mounting = await _can_mount()
    with tempfile.TemporaryDirectory() as folder:
        cases: list[tuple[str, str, Path, tuple[str, ...]]] = [("a log without space", FULL_LOG, plan.bundle, ())]
        if mounting:
            there = Path(folder) / "bundle"
            cases += [("a full disk", FULL_DISK, there, MOUNTING), ("a read-only disk", READ_ONLY, there, MOUNTING)]
        for name, script, bundle, mounts in cases:
            within = (*mounts, "env", f"BUNDLE={plan.bundle}", "sh", "-c", script, folder)
            errors: list[BaseException] = []
            async with jumok_serve(bundle, "--log-requests", within=within) as server:
                async with jumok.AsyncClient(server.address, timeout_s=120, max_attempts=1) as client:
                    for text in plan.texts[:CALLS]:
                        try:
                            await client.translate(text)
                        except jumok.JumokError as error:
                            errors.append(error)
                findings.expect_equal(f"{name}: serves", await is_healthy(server.address), True)
                status = await server.end(signal.SIGTERM)
            progress(f"disk: {name}")
            findings.expect_none(f"{name}: of {CALLS} calls, those that failed", errors)
            findings.expect_equal(f"{name}: exit status after SIGTERM", status, 0)
    if not mounting:
        findings.tell("full and read-only disks", "left out: no mounts of one's own are allowed here")


async def _can_mount() -> bool:
    """True if a process may have mounts of its own."""
    try:
        process = await asyncio.create_subprocess_exec(
            *MOUNTING, "sh", "-c", "mount -t tmpfs tmpfs /mnt", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return False
    return await process.wait() == 0
