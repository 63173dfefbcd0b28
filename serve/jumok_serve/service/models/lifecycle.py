"""Loading and unloading of models, and their description."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jumok_proto.errors import (
    BundleNotLoadedError,
    InvalidArgumentError,
    JumokError,
    LanguageNotFoundError,
    UnavailableError,
)
from jumok_proto.results import DecodingDefaults, LanguagePair, LoadResult, Model
from jumok_serve.bundle.model_root import FoundBundle, ModelRoot
from jumok_serve.errors import BundleError
from jumok_serve.manifest.languages import Languages
from jumok_serve.runtime.process_memory import give_back_memory
from jumok_serve.service.models.registry import ModelEntry, ModelRegistry
from jumok_serve.service.rpc.statuses import stopping
from jumok_serve.translator import Translator


def describe(entry: ModelEntry) -> Model:
    """Describe a model to callers."""
    model, manifest = entry.model, entry.model.manifest
    languages, generation, special = manifest.languages, manifest.generation, manifest.special_tokens
    return Model(
        name=manifest.name,
        version=manifest.version,
        architecture=manifest.architecture.family,
        source_languages=tuple(languages.sources),
        target_languages=tuple(languages.targets),
        language_pairs=tuple(LanguagePair(source=pair.source, target=pair.target) for pair in languages.pairs),
        default_pair=_default_pair(languages),
        max_source_length=manifest.limits.max_source_length,
        max_target_length=manifest.limits.max_target_length,
        defaults=DecodingDefaults(**dict(generation), suppress_tokens=special.suppress, end_tokens=special.eos),
        precision=model.precision,
        device=model.device,
        state=entry.state,
    )


def _default_pair(languages: Languages) -> LanguagePair | None:
    """Direction of a request without languages, or None if there is none."""
    try:
        direction = languages.direction()
    except (InvalidArgumentError, LanguageNotFoundError):
        return None
    return LanguagePair(source=direction.source, target=direction.target)


logger = logging.getLogger(__name__)

MAX_LOADS = 4
"""Bundles that are tried at once; one of those that passed is opened at a time, and further loads wait."""
THREADS = MAX_LOADS + 3
"""Threads of loads; others may wait for engines to close."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Administration:
    """Configuration of AdminService.

    Attributes:
        root: folder of the bundles that may be loaded.
        load: opens a bundle and warms it up; called in a thread.
        check: tries a bundle before; called in a thread, for several bundles at once.
        cancel_load: makes a running `check` or `load` end soon; called when the server stops.
        host: address to listen on, if it has its own port.
        port: separate port; 0: any free one; None: the port of the other services.
    """

    root: Path
    load: Callable[[Path], Translator]
    check: Callable[[Path], None] = lambda _: None
    cancel_load: Callable[[], None] = lambda: None
    host: str = "127.0.0.1"
    port: int | None = None


class Lifecycle:
    """Tries bundles beside each other, loads models one at a time, drains and frees old ones.

    Used in the event loop only.

    Args:
        on_change: called after the set of models that take requests changed.
    """

    def __init__(self, models: ModelRegistry, administration: Administration, on_change: Callable[[], None]) -> None:
        self._models = models
        self._administration = administration
        self._root = ModelRoot(administration.root)
        self._on_change = on_change
        self._places = asyncio.Semaphore(MAX_LOADS)
        self._opening = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="models")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = self._cancelled = False
        self.loading: list[str] = []
        """Names of the bundles that are being loaded."""

    async def bundles(self) -> list[FoundBundle]:
        """List the bundles of the root."""
        return await self._in_thread(self._root.bundles)

    async def load(self, bundle: str) -> LoadResult:
        """Load a bundle of the root and route its model's requests there.

        A load that has begun goes on after a cancellation.

        Raises:
            InvalidArgumentError: the name cannot be a folder of the root.
            BundleNotFoundError: no such folder.
            BundleNotLoadedError: the bundle or the device is unusable.
            UnavailableError: the server is stopping.
        """
        await self._places.acquire()
        loading = self._start_task(self._load_and_register(bundle))
        loading.add_done_callback(lambda _: self._places.release())  # not at the caller's cancellation
        return await asyncio.shield(loading)

    async def unload(self, name: str) -> Model:
        """Route no more requests to a model; free it after its calls.

        Raises:
            ModelNotFoundError: no such model.
        """
        entry = self._models.unregister(name)
        logger.info("unloading %s %s", name, entry.model.manifest.version)
        self._retire(entry)
        return describe(entry)

    def cancel(self) -> None:
        """End the trials of bundles that are being loaded, and open none of them."""
        self._cancelled = True
        self._administration.cancel_load()

    async def stop(self) -> None:
        """Refuse further loads, and wait for running loads and drains."""
        self._stopping = True
        self.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._threads.shutdown)

    async def _load_and_register(self, bundle: str) -> LoadResult:
        started = time.monotonic()
        folder = await self._in_thread(partial(self._root.find, bundle))
        self.loading.append(bundle)
        try:
            await self._in_thread(partial(self._administration.check, folder))
            async with self._opening:
                if self._cancelled:
                    raise stopping()
                model = await self._in_thread(partial(self._administration.load, folder))
        except BundleError as error:
            logger.error("%s", error)
            if self._cancelled:
                raise stopping() from error
            raise BundleNotLoadedError(str(BundleError(bundle, error.problems))) from error
        except UnavailableError:
            raise
        except OSError as error:
            logger.error("bundle %s: cannot be loaded: %s", folder, error)
            raise BundleNotLoadedError(f"bundle {bundle}: cannot be loaded: {error}") from error
        except Exception as error:  # foreign files and graphs fail in many ways
            logger.exception("bundle %s: cannot be loaded", folder)
            raise BundleNotLoadedError(f"bundle {bundle}: cannot be loaded: {error or 'not enough memory'}") from error
        finally:
            self.loading.remove(bundle)
        if self._stopping:
            await self._in_thread(model.close)
            raise stopping()
        replaced = self._models.register(model)
        replaced_version = None if replaced is None else replaced.model.manifest.version
        manifest = model.manifest
        logger.info(
            "loaded %s %s from %s in %.2f s%s",
            manifest.name,
            manifest.version,
            folder,
            time.monotonic() - started,
            "" if replaced_version is None else f"; it replaces {replaced_version}",
        )
        result = LoadResult(model=describe(self._models.find(manifest.name)), replaced_version=replaced_version)
        if replaced is None:
            self._on_change()
        else:
            self._retire(replaced)
        return result

    def _retire(self, entry: ModelEntry) -> None:
        self._start_task(self._drain(entry))
        self._on_change()

    async def _drain(self, entry: ModelEntry) -> None:
        started = time.monotonic()
        name, version = entry.name, entry.model.manifest.version
        await entry.wait_until_unused()
        await self._in_thread(entry.model.close)
        self._models.forget(entry)
        del entry  # the last reference
        await self._in_thread(give_back_memory)
        logger.info("freed %s %s after %.2f s", name, version, time.monotonic() - started)

    def _start_task(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, JumokError):  # the caller may have gone
            logger.error("models could not be changed", exc_info=error)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        result, error = await asyncio.get_running_loop().run_in_executor(self._threads, _outcome, work)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # there is one without an error


def _outcome(work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """Return the result or the error of work; a future refuses StopIteration, and would never be done."""
    try:
        return work(), None
    except StopIteration as error:
        return None, RuntimeError(f"an iterator ended early: {error!r}")
    except Exception as error:
        return None, error
    except BaseException as error:  # such as a panic of a library in Rust
        return None, RuntimeError(f"native code failed: {error!r}")
