"""Replacing versions of a real model under load, without failed calls and without leaks."""

import json
import shutil
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

import jumok
from jumok.commands.admin import admin as admin_command
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.process_memory import give_back_memory
from jumok_serve.service import Administration
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S, wait_until
from tests.support.servers.in_process_server import serving

NAME = "tiny-en-de"
TEXTS = ["A dog runs.", "Two men are cooking food."]
COMMITTED = Path(__file__).parents[4] / "models/multi30k-en-de-transformer"


class Loader:
    """Loads models as a server does, and keeps weak references to them."""

    def __init__(self) -> None:
        self.graphs: list[weakref.ref[Graphs]] = []

    def __call__(self, folder: Path) -> Translator:
        translator = Translator(folder, precision="fp32", replicas=1, threads=1)
        translator.warm_up()
        self.graphs.append(weakref.ref(translator.graphs))
        return translator


@pytest.fixture
def root(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Two versions of the tiny model, and one with truncated weights."""
    root = tmp_path / "root"
    for folder, version in (("one", "1"), ("two", "2"), ("cut", "3")):
        shutil.copytree(tiny_bundle, root / folder)
        manifest = json.loads((root / folder / "manifest.json").read_text(encoding="utf-8"))
        (root / folder / "manifest.json").write_text(json.dumps(manifest | {"version": version}), encoding="utf-8")
    weights = root / "cut/fp32/weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    return root


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def address(root: Path, loader: Loader) -> Iterator[str]:
    with serving(administration=Administration(root=root, load=loader)) as address:
        yield address


def test_requests_see_no_error_while_models_are_replaced(address: str, loader: Loader) -> None:
    with jumok.AdminClient(address) as admin, jumok.Client(address, max_attempts=1) as client:
        admin.load_model("one")
        (expected,) = client.translate(TEXTS[:1])
        over = threading.Event()
        seen: list[jumok.Translation] = []

        def call() -> None:
            while not over.is_set():
                seen.extend(client.translate(TEXTS))

        def stream() -> None:
            while not over.is_set():
                seen.extend(result.translation for result in client.translate_iter(TEXTS * 20) if result.translation)

        with ThreadPoolExecutor(4) as callers:
            calls = [callers.submit(task) for task in (call, call, call, stream)]
            try:
                for folder, was in (("two", "1"), ("one", "2"), ("two", "1")):
                    served_by(was, seen)
                    loaded = admin.load_model(folder)
                    assert (loaded.model.name, loaded.replaced_version) == (NAME, was)
                    with pytest.raises(
                        jumok.FailedPreconditionError, match=r"fp32/weights.bin: \d+ bytes, the manifest says"
                    ):
                        admin.load_model("cut")
                    # What comes from now on is of the new version.
                    assert client.translate("A dog runs.").model_version == loaded.model.version
                served_by("2", seen)
            finally:
                over.set()
            for task in calls:
                task.result(HANG_S)
        assert {translation.model_version for translation in seen} == {"1", "2"}
        texts = {
            translation.text for translation in seen if translation.source_token_count == expected.source_token_count
        }
        assert expected.text in texts
        assert len({translation.text for translation in seen}) == 2  # both versions have the same weights
        admin.unload_model(NAME)
    assert len(loader.graphs) == 4


def served_by(version: str, seen: list[jumok.Translation]) -> None:
    """Wait for translations by a version."""
    wait_until(lambda: bool(seen) and seen[-1].model_version == version)


def test_what_is_replaced_or_unloaded_leaves_memory(root: Path, loader: Loader) -> None:
    with (
        serving(administration=Administration(root=root, load=loader)) as address,
        jumok.AdminClient(address) as admin,
        jumok.Client(address) as client,
    ):
        for folder in ("one", "two"):
            admin.load_model(folder)
            client.translate(TEXTS, attention=True)
        admin.unload_model(NAME)
        with pytest.raises(jumok.NotFoundError):
            client.translate(TEXTS)
    # A server that has stopped has finished what it began.
    assert [graphs() for graphs in loader.graphs] == [None, None]


def test_a_translator_that_is_closed_leaves_memory_at_once(root: Path, loader: Loader) -> None:
    translator = loader(root / "one")
    translator.translate(TEXTS)
    translator.close()
    del translator
    assert [graphs() for graphs in loader.graphs] == [None]  # nothing there refers back to it


def test_results_that_wait_for_a_reader_keep_no_model_in_memory(root: Path, loader: Loader) -> None:
    translator = loader(root / "one")
    pending = translator.submit(TEXTS)
    translator.close()
    del translator
    assert [graphs() for graphs in loader.graphs] == [None]
    assert all(translation.text for translation in pending.collect())


def test_cycles_of_loading_do_not_grow_the_process() -> None:
    resident = []
    for _ in range(5):
        translator = Translator(COMMITTED, threads=1)
        translator.warm_up()
        translator.close()
        del translator
        give_back_memory()
        resident.append(4096.0 * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]))
    # Loaded, the model has some 50 MB; pages that are not whole come and go by a tenth of that.
    assert min(resident[3:]) - min(resident[1:3]) < 16e6, resident


def test_the_commands_load_list_and_unload(address: str, root: Path) -> None:
    def ask(*arguments: str, server: str = address) -> tuple[int, str]:
        done = CliRunner().invoke(admin_command, [*arguments, "--server", server])
        return done.exit_code, done.output or str(done.exception)

    assert ask("load", "one") == (0, f"serving {NAME} 1 (fp32, cpu)\n")
    assert ask("load", "two") == (0, f"serving {NAME} 2 (fp32, cpu), instead of 1\n")
    shutil.copytree(root / "one", root / "broken")
    (root / "broken/manifest.json").write_text("{}", encoding="utf-8")
    code, listed = ask("list")
    assert code == 0
    broken, *others = [line.split("\t") for line in listed.splitlines()]
    assert (broken[:2], broken[2].startswith("unusable: manifest.json has no format_version")) == (["broken", ""], True)
    assert others == [
        ["cut", f"{NAME} 3", "available"],
        ["one", f"{NAME} 1", "available"],
        ["two", f"{NAME} 2", "loaded"],
    ]
    assert ask("unload", NAME) == (0, f"no longer serving {NAME} 2\n")
    code, refused = ask("unload", NAME)
    assert (code, "is not loaded; available: none" in refused) == (1, True)
    with serving() as other:
        code, refused = ask("list", server=other)
    assert (code, "start it with --model-root" in refused) == (1, True)


async def test_the_asynchronous_client_does_the_same(address: str) -> None:
    async with jumok.AsyncAdminClient(address) as admin:
        loaded = await admin.load_model("one")
        assert (loaded.model.version, loaded.model.state) == ("1", jumok.ModelState.SERVING)
        listed = {bundle.bundle: bundle.state for bundle in await admin.list_bundles()}
        assert (listed["one"], listed["two"]) == (jumok.BundleState.LOADED, jumok.BundleState.AVAILABLE)
        with pytest.raises(jumok.NotFoundError) as refused:
            await admin.load_model("three")
        assert refused.value.reason == "BUNDLE_NOT_FOUND"
        with pytest.raises(jumok.InvalidArgumentError):
            await admin.load_model("../one")
        assert (await admin.unload_model(NAME)).state is jumok.ModelState.DRAINING
