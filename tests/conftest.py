"""Fixtures of all tests: a tiny corpus and small committed bundles."""

import asyncio
import fcntl
import hashlib
import inspect
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from jumok_serve import native
from tests.support.data import DATA, MODELS, Sentences, read_sentences
from tests.support.hang import bounded

# The time that an example takes depends on the machine's load.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

# What a shell runs in the background ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

Made = Callable[[str, Callable[[Path], object]], Path]


def pytest_sessionstart() -> None:
    """Stop if the native kernels were built from other sources: their tests would be skipped."""
    try:
        native.check(native.LIBRARY)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception:  # there are none, or this processor cannot run them
        return


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the processes of a run: one more than cores, because many tests only wait, and at most four."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or min(cores + 1, 4))


SLOW = (
    "tests/benchmarks",
    "tests/clients/test_watch.py",
    "tests/export/bundles/test_ensemble.py",
    "tests/export/bundles/test_refused_models.py::test_verification_says_what_usually_helps",
    "tests/export/bundles/test_scales.py",
    "tests/export/bundles/test_trained_anew.py",
    "tests/export/cli/test_named_models.py",
    "tests/export/decoding/test_recurrent_models.py",
    "tests/export/importers/test_argos.py",
    "tests/export/importers/ctranslate2",
    "tests/export/importers/huggingface/test_import.py",
    "tests/export/importers/marian/test_engines.py",
    "tests/export/importers/marian/test_import.py",
    "tests/export/importers/marian/test_listed.py",
    "tests/export/importers/test_hub.py",
    "tests/export/models/test_real_model.py",
    "tests/export/native/test_graphs.py::test_add_native",
    "tests/export/quantization/test_calibration.py::test_a_bundle_says",
    "tests/export/quantization/test_calibration.py::test_broken",
    "tests/export/shortlists/test_shortlist.py::test_a_decoder_that_gathers",
    "tests/export/shortlists/test_shortlist.py::test_broken",
    "tests/export/shortlists/test_shortlist.py::test_tokens_that_end",
    "tests/export/test_parallel.py::test_a_graph_that_is_traced",
    "tests/export/training/test_guided_alignment.py::test_a_resumed",
    "tests/export/training/test_training.py",
    "tests/export/verification/test_noise.py",
    "tests/export/verification/test_refusal.py",
    "tests/export/verification/test_threads.py",
    "tests/faults",
    "tests/parity",
    "tests/project/test_committed_model.py::test_it_is_as_good",
    "tests/project/test_documents.py",
    "tests/project/test_packaging.py",
    "tests/project/test_site.py",
    "tests/project/test_wheels.py",
    "tests/serve/bundle/test_foreign_files.py::test_lists_that_are_larger",
    "tests/serve/http/playground/test_accessibility.py",
    "tests/serve/http/test_gateway.py",
    "tests/serve/http/test_strangers.py::test_a_request_is_freed",
    "tests/serve/kernels/test_arena.py",
    "tests/serve/kernels/test_instruction_sets.py",
    "tests/serve/kernels/test_malformed_inputs.py::test_wrong_sizes",
    "tests/serve/runtime/test_process_memory.py::test_free_memory",
    "tests/serve/service/models/test_model_swap.py",
    "tests/serve/service/rpc/test_memory_of_refusals.py",
    "tests/serve/service/test_connections.py::test_a_call_with_too_much_metadata",
    "tests/serve/service/test_connections.py::test_a_connection_whose_calls_are_all_cancelled",
    "tests/serve/service/test_failover.py",
    "tests/serve/service/test_foreign_client.py",
    "tests/serve/service/test_many_callers.py::test_every_client",
    "tests/serve/service/test_open_files.py",
    "tests/serve/service/test_stopping.py",
    "tests/serve/tasks/test_waiting_memory.py",
    "tests/serve/text/files/test_archive.py",
    "tests/serve/text/files/test_memory.py",
    "tests/serve/text/files/test_mutated_files.py",
    "tests/serve/text/files/test_npm_readmes.py",
    "tests/serve/text/files/test_office.py::test_libreoffice",
    "tests/serve/text/files/test_office.py::test_templates",
    "tests/serve/text/markup/test_placing.py::test_work_for_one_sentence",
    "tests/serve/text/test_sentence_boundaries.py::test_work_grows",
    "tests/serve/tokenizers/test_moses_bpe.py::test_time_grows",
    "tests/serve/tokenizers/test_moses_bpe.py::test_words_are",
)
"""Beginnings of the ids of tests that take more than ten seconds, alone or together with others of their file."""
EXPORTING = (
    "tests/export/bundles",
    "tests/export/graphs/test_exporter.py",
    "tests/export/graphs/test_graphs.py",
    "tests/export/graphs/test_method_outputs.py",
    "tests/export/importers/huggingface/test_import",
    "tests/export/quantization/test_calibration.py",
    "tests/export/training/test_guided_alignment.py",
    "tests/project/test_committed_model.py",
)
"""Beginnings of the ids of tests that train or export models, or translate a whole test set."""
LONG = frozenset((Path(__file__).parent / "long.txt").read_text(encoding="utf-8").split())
"""Tests that take more than a second in a case, or more than three in all, and are not slow."""
LONGEST_FIRST = (
    "test_parity.py",
    "test_documents.py",
    "test_noise.py",
    "test_studies.py",
    "test_benchmarks.py",
    "test_training.py",
)
"""Files with single tests of a quarter of a minute and more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow, unit and long tests, and start with the longest ones, so that no process waits for another at the end.

    Groups of tests that one process runs (`xdist_group`) come before them, largest first.
    """
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        elif is_unit(item):
            item.add_marker("unit")
        if re.split(r"[\[@]", item.nodeid)[0] in LONG:  # without parameters and group
            item.add_marker("long")
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def is_unit(item: pytest.Item) -> bool:
    """True if a test trains no model, exports none and starts no process."""
    assert isinstance(item, pytest.Function)
    starts_processes = {"subprocess", "jumok", "serving", "run_process", "serve"} & vars(item.module).keys() or {
        "browser",
        "places",
    } & {*item.fixturenames}
    exports = "made_once" in item.fixturenames or item.nodeid.startswith(EXPORTING)
    return not starts_processes and not exports and not item.get_closest_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(bounded(pyfuncitem.obj(**arguments)))
    return True


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the folder of a name, filled once for all processes; read only.

    The first process that asks fills it, and others wait meanwhile. In `JUMOK_TEST_CACHE` it lasts from run to run.
    """
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    if cache := os.environ.get("JUMOK_TEST_CACHE"):
        shared = Path(cache) / hash_of_exporters()
    shared.mkdir(exist_ok=True, parents=True)

    def make_once(name: str, fill: Callable[[Path], object]) -> Path:
        folder, filled = shared / name, shared / f"{name}.filled"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not filled.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
                folder.mkdir()
                fill(folder)
                filled.touch()
        return folder

    return make_once


def hash_of_exporters() -> str:
    """Return the hash of all code and data on which made folders depend."""
    root = DATA.parent.parent
    folders = (root / "export", root / "serve/jumok_serve/manifest", root / "serve/jumok_serve/bundle", DATA)
    files = [Path(__file__), *(file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file())]
    hashed = hashlib.sha256(b"".join(file.read_bytes() for file in files if file.suffix != ".pyc"))
    return hashed.hexdigest()[:16]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the verdicts on bundles in the folder of the run, for all its processes."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    os.environ["JUMOK_CACHE"] = str(shared / "cache")


@pytest.fixture(scope="session")
def sentences() -> Sentences:
    """A few dozen English sentences and their German translations."""
    return read_sentences()


@pytest.fixture(scope="session")
def tiny_bundle() -> Path:
    """The tiny model's verified bundle, in fp32 and int8; not to be changed."""
    return MODELS / "tiny-en-de"


@pytest.fixture(scope="session")
def recurrent_bundle() -> Path:
    """The verified bundle of a recurrent model with attention, in fp32 and calibrated int8; not to be changed."""
    return MODELS / "tiny-recurrent"


@pytest.fixture(scope="session")
def half_bundle() -> Path:
    """The tiny bundle in fp32 and fp16, without int8; not to be changed."""
    return MODELS / "tiny-half"


@pytest.fixture(scope="session")
def listed_bundle() -> Path:
    """The tiny bundle with a shortlist that leaves out most of the vocabulary; not to be changed."""
    return MODELS / "listed-en-de"
