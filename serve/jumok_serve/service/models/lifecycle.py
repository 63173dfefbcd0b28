"""How models come and go while a server runs: loaded and tried first, then found by requests; drained, then freed."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jumok_proto.errors import BundleNotLoadedError, JumokError, UnavailableError
from jumok_proto.results import LoadResult, Model
from jumok_serve.bundle.model_root import FoundBundle, ModelRoot
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.errors import BundleError, DeviceError
from jumok_serve.runtime.process_memory import give_back_memory
from jumok_serve.service.handlers.model_service import describe
from jumok_serve.service.models.loaded_model import LoadedModel
from jumok_serve.service.models.registry import HeldModel, ModelRegistry

logger = logging.getLogger(__name__)

THREADS = 4
"""One loads, others may wait for engines to finish."""

Result = TypeVar("Result")


class Lifecycle:
    """Loads models into a registry and takes them out, one after the other; in the event loop alone.

    Args:
        models: the registry.
        root: where bundles are.
        load: opens a bundle and tries it, in a thread.
        changed: is called whenever other models take requests.
    """

    def __init__(
        self,
        models: ModelRegistry,
        *,
        root: ModelRoot,
        load: Callable[[Path], LoadedModel],
        changed: Callable[[], None],
    ) -> None:
        self._models = models
        self._root = root
        self._load = load
        self._changed = changed
        self._changing = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="models")
        self._under_way: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self.loading = ""
        """Name of the bundle that is being loaded, or nothing."""

    async def bundles(self) -> list[FoundBundle]:
        """Give the bundles of the root."""
        return await self._in_thread(self._root.bundles)

    async def load(self, bundle: str) -> LoadResult:
        """Load a bundle of the root, and have it take the requests for its model.

        Once it has begun it goes on, even if this is cancelled.

        Raises:
            InvalidArgumentError: the name is none of a folder in the root.
            BundleNotFoundError: there is no such folder.
            BundleNotLoadedError: it, or its device, cannot be used.
            UnavailableError: the server is being stopped.
        """
        await self._changing.acquire()
        loading = self._begin(self._load_and_put(bundle))
        loading.add_done_callback(lambda _: self._changing.release())  # not when the caller leaves
        return await asyncio.shield(loading)

    async def unload(self, name: str) -> Model:
        """Have a model take no more requests, and free it once it has finished those that it has.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        held = self._models.take(name)
        logger.info("unloading %s %s", name, held.model.manifest.version)
        self._retire(held)
        return describe(held)

    async def stop(self) -> None:
        """Load nothing more, and wait for what is under way."""
        self._stopping = True
        while self._under_way:
            await asyncio.wait(self._under_way)
        await asyncio.to_thread(self._threads.shutdown)

    async def _load_and_put(self, bundle: str) -> LoadResult:
        started = time.monotonic()
        folder = await self._in_thread(partial(self._root.find, bundle))
        self.loading = bundle
        try:
            model = await self._in_thread(partial(self._load, folder))
        except BundleError as error:
            logger.error("%s", error)
            raise BundleNotLoadedError(str(BundleError(bundle, error.problems))) from error
        except (DeviceError, OSError, MemoryError) as error:
            logger.exception("bundle %s: cannot be loaded", folder)
            raise BundleNotLoadedError(f"bundle {bundle}: cannot be loaded: {error or 'not enough memory'}") from error
        finally:
            self.loading = ""
        if self._stopping:
            await self._in_thread(model.close)
            raise UnavailableError("the server is being stopped", retry_after_s=RETRY_AFTER_S)
        replaced = self._models.put(model)
        was = None if replaced is None else replaced.model.manifest.version
        manifest = model.manifest
        logger.info(
            "loaded %s %s from %s in %.2f s%s",
            manifest.name,
            manifest.version,
            folder,
            time.monotonic() - started,
            "" if was is None else f"; it replaces {was}",
        )
        described = LoadResult(model=describe(self._models.find(manifest.name)), replaced_version=was)
        if replaced is None:
            self._changed()
        else:
            self._retire(replaced)
        return described

    def _retire(self, held: HeldModel) -> None:
        self._begin(self._drain(held))
        self._changed()

    async def _drain(self, held: HeldModel) -> None:
        """Let a model finish what it has, and free it."""
        started = time.monotonic()
        name, version = held.name, held.model.manifest.version
        await held.wait_until_unused()
        await self._in_thread(held.model.close)
        self._models.forget(held)
        del held  # the last to know of it
        await self._in_thread(give_back_memory)
        logger.info("freed %s %s after %.2f s", name, version, time.monotonic() - started)

    def _begin(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, JumokError):  # perhaps nobody waits for it any more
            logger.error("models could not be changed", exc_info=error)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
