"""Trials of bundles in processes of their own, and their verdicts."""

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from signal import Signals

import onnxruntime

from jumok_serve.bundle.bundle import manifest_bytes, read_manifest
from jumok_serve.cache import cache_folder
from jumok_serve.errors import BundleError
from jumok_serve.runtime.process_memory import free_memory

logger = logging.getLogger(__name__)


MEMORY_BYTES = 4 * 2**30
"""Memory that a trial may allocate besides that for the bundle's files."""
MEMORY_PER_BYTE = 10
"""Memory that a trial may allocate for each byte of the files: they are read, packed and kept by several sessions."""
LEAST_MEMORY_BYTES = 256 * 2**20
"""Memory without which no trial begins: Python and ONNX Runtime take as much."""
CPU_S = 60
"""Seconds of computing that a trial may take besides those for the files."""
BYTES_PER_CPU_S = 10 * 2**20
WAIT_FACTOR = 4
"""Limit of elapsed time over that of computing: other processes may use the cores too."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables for NumPy, which else takes memory for a thread on each core."""
_LAST_CHARACTERS = 2000
"""Characters of a child's standard error in an error message."""


@dataclass(eq=False, kw_only=True)
class BundleChecker:
    """Tries bundles in child processes; good verdicts are kept for later starts, one empty file each.

    Any thread may call the methods. Trials beside each other share the memory that is free: each may take half of what
    those before it leave.

    Attributes:
        precision: precision to try, or "auto".
        shortlist: True to try the graphs for shortlists.
        verdicts: folder of kept verdicts, which may be unusable; None: ``verdicts`` in the cache folder.
        cpu_s: seconds of computing that a trial may take besides those for the files.
    """

    precision: str = "auto"
    shortlist: bool = False
    verdicts: Path | None = None
    cpu_s: int = CPU_S
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _children: dict[subprocess.Popen[str], int] = field(default_factory=dict, init=False)  # memory that each may take
    _good: set[str] = field(default_factory=set, init=False)
    _closed: bool = field(default=False, init=False)

    def check(self, bundle: Path) -> None:
        """Open a bundle and decode with it in a child process.

        Raises:
            BundleError: the bundle cannot be used, or its trial crashed or exceeded a limit.
        """
        key = self._key(bundle)
        if key in self._good or self._is_kept(key):
            logger.debug("bundle %s was tried before", bundle)
            return
        started = time.monotonic()
        problems = self._try(bundle)
        if problems:
            raise BundleError(bundle, problems)
        self._good.add(key)
        self._keep(key)
        logger.info("tried bundle %s in a process of its own in %.2f s", bundle, time.monotonic() - started)

    def close(self) -> None:
        """Stop running trials, and refuse further ones."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()

    def _key(self, bundle: Path) -> str:
        """Return a name for all that a verdict depends on; the manifest has the hashes of all files."""
        parts = (version("jumok"), onnxruntime.__version__, _processor(), self.precision, str(self.shortlist))
        return hashlib.sha256(b"\0".join([manifest_bytes(bundle), *(part.encode() for part in parts)])).hexdigest()

    def _is_kept(self, key: str) -> bool:
        try:
            return (self._folder() / key).is_file()
        except (OSError, RuntimeError):  # there is no home folder
            return False

    def _keep(self, key: str) -> None:
        """Keep a good verdict, if the folder is writable."""
        try:
            folder = self._folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / key).touch(mode=0o600)
        except (OSError, RuntimeError) as error:
            logger.debug("the verdict on a bundle is not kept: %s", error)

    def _folder(self) -> Path:
        return cache_folder() / "verdicts" if self.verdicts is None else self.verdicts

    def _try(self, bundle: Path) -> list[str]:
        size = sum(entry.size for entry in read_manifest(bundle).files.values())
        cpu_s = self.cpu_s + size // BYTES_PER_CPU_S
        with self._lock:
            if self._closed:
                return ["the server is stopping"]
            memory = self._memory_for(size)
            if memory < LEAST_MEMORY_BYTES:
                return [
                    f"its trial may take {memory // 2**20} MiB, half of the memory that is free, and needs "
                    f"{LEAST_MEMORY_BYTES // 2**20}: free memory, unload a model, or wait for other trials"
                ]
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "jumok_serve.sandbox.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | _ONE_THREAD,
                text=True,
                errors="replace",
            )
            self._children[child] = memory
        request = {
            "bundle": os.path.abspath(bundle),
            "precision": self.precision,
            "shortlist": self.shortlist,
            "memory_bytes": memory,
            "cpu_s": min(cpu_s, 2**31),
        }
        with child:
            try:
                out, error = child.communicate(json.dumps(request), timeout=WAIT_FACTOR * cpu_s)
            except subprocess.TimeoutExpired:
                return [f"its trial did not end within {WAIT_FACTOR * cpu_s} s"]
            finally:
                child.kill()
                with self._lock:
                    del self._children[child]
        return _verdict(child.returncode, out, error, cpu_s)

    def _memory_for(self, size: int) -> int:
        """Return the bytes of memory that a further trial may take, of a bundle of a size."""
        most = min(MEMORY_BYTES + MEMORY_PER_BYTE * size, 2**62)
        free = free_memory()
        return most if free is None else min(most, max(0, free - sum(self._children.values())) // 2)


def _verdict(code: int, out: str, error: str, cpu_s: int) -> list[str]:
    """Return the problems that a child printed, or the reason why it did not."""
    if code == 0:
        try:
            problems: list[str] = json.loads(out)
        except ValueError:
            return [f"its trial gave no verdict: {out[-_LAST_CHARACTERS:]!r}"]
        return problems
    if code in {-Signals.SIGXCPU, -Signals.SIGKILL}:
        return [f"its trial was stopped: it computed for more than {cpu_s} s, or needed too much memory"]
    if code < 0:
        return [f"its trial crashed with {Signals(-code).name}"]
    last = error.strip().rpartition("\n")[2]
    return [f"its trial failed with exit status {code}: {last[-_LAST_CHARACTERS:]}"]


def _processor() -> str:
    """Return the processor's name and instructions, by which kernels are chosen."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    described = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return "\n".join([platform.machine(), *described])
