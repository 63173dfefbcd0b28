"""The models that a server holds: those that requests find by name, and those that only finish what they have."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jumok_proto.errors import InvalidArgumentError, ModelNotFoundError
from jumok_proto.results import ModelState
from jumok_serve.engine.counters import EngineCounters
from jumok_serve.engine.occupancy import Load
from jumok_serve.errors import DuplicateModelError
from jumok_serve.service.models.loaded_model import LoadedModel


class HeldModel:
    """A model, and the calls that use it; in the event loop alone.

    Args:
        model: the model.

    Attributes:
        model: the same.
        draining: whether no further call will use it.
    """

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.draining = False
        self._calls = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @property
    def name(self) -> str:
        """Its name."""
        return self.model.manifest.name

    @property
    def state(self) -> ModelState:
        """Whether requests for it are served."""
        if self.draining:
            return ModelState.DRAINING
        return ModelState.SERVING if self.model.ready else ModelState.RECOVERING

    @contextmanager
    def used(self) -> Iterator[LoadedModel]:
        """Keep the model open for a call."""
        self._calls += 1
        self._unused.clear()
        try:
            yield self.model
        finally:
            self._calls -= 1
            if not self._calls:
                self._unused.set()

    async def wait_until_unused(self) -> None:
        """Wait for the last call."""
        await self._unused.wait()


class _Models(NamedTuple):
    """All that a registry holds at one moment: the models that take requests by name, the others, and what models that
    are gone have counted under names that are not."""

    serving: dict[str, HeldModel]
    draining: tuple[HeldModel, ...] = ()
    former: dict[str, EngineCounters] = {}  # noqa: RUF012 - nothing here is ever changed

    def held(self) -> list[HeldModel]:
        return sorted((*self.serving.values(), *self.draining), key=lambda held: held.name)

    def formerly(self, name: str) -> list[EngineCounters]:
        return [self.former[name]] if name in self.former else []


class ModelRegistry:
    """The models of one server; of those that take requests, names are unique.

    It changes in the event loop alone, and may be read from any thread.

    Args:
        models: what it holds at first.

    Raises:
        DuplicateModelError: two have the same name.
    """

    def __init__(self, models: Sequence[LoadedModel]) -> None:
        names = [model.manifest.name for model in models]
        for name in names:
            if names.count(name) > 1:
                raise DuplicateModelError(name)
        self._models = _Models(_by_name(map(HeldModel, models)))  # replaced at every change, for readers elsewhere

    def __iter__(self) -> Iterator[LoadedModel]:
        """Those that take requests, sorted by name."""
        return (held.model for held in self._models.serving.values())

    def held(self) -> list[HeldModel]:
        """All, sorted by name; behind the one that takes requests those that it has replaced."""
        return self._models.held()

    @property
    def full(self) -> bool:
        """Whether all queues are full, whichever model a text is for."""
        serving = self._models.serving
        return bool(serving) and all(held.model.full for held in serving.values())

    def find(self, name: str) -> HeldModel:
        """Give the model of this name; raise ModelNotFoundError where there is none."""
        serving = self._models.serving
        if name not in serving:
            raise ModelNotFoundError.of(name, list(serving))
        return serving[name]

    @contextmanager
    def use(self, name: str) -> Iterator[LoadedModel]:
        """Give the model of this name, which stays open meanwhile; an empty name means the only one.

        Raises:
            ModelNotFoundError: there is none of this name, or none at all.
            InvalidArgumentError: there are several, and none is named.
        """
        serving = self._models.serving
        if not name and len(serving) > 1:
            raise InvalidArgumentError(f"name a model: this server holds {', '.join(serving)}", field="model")
        with self.find(name or next(iter(serving), "")).used() as model:
            yield model

    def put(self, model: LoadedModel) -> HeldModel | None:
        """Have a model take the requests for its name; give the one that did, which is to be drained."""
        held = HeldModel(model)
        serving, draining, former = self._models
        replaced = serving.get(held.name)
        if replaced is not None:
            replaced.draining = True
            draining = (*draining, replaced)
        self._models = _Models(_by_name([*(serving | {held.name: held}).values()]), draining, former)
        return replaced

    def take(self, name: str) -> HeldModel:
        """Have no model take requests for a name; give the one that did, which is to be drained.

        Raises:
            ModelNotFoundError: there is none.
        """
        held = self.find(name)
        serving, draining, former = self._models
        held.draining = True
        others = {other: kept for other, kept in serving.items() if other != name}
        self._models = _Models(others, (*draining, held), former)
        return held

    def forget(self, held: HeldModel) -> None:
        """Let go of a model that was drained; what it counted stays as long as another has its name."""
        name = held.name
        serving, draining, former = self._models
        left = tuple(other for other in draining if other is not held)
        kept = {other: counted for other, counted in former.items() if other != name}
        if name in serving or any(other.name == name for other in left):
            kept[name] = EngineCounters.sum([*self._models.formerly(name), held.model.counters()])
        self._models = _Models(serving, left, kept)

    def counters(self) -> dict[str, EngineCounters]:
        """What was done under each name, by the model that has it now and by those that it has replaced."""
        models = self._models
        by_name: dict[str, list[EngineCounters]] = {}
        for held in models.held():
            by_name.setdefault(held.name, models.formerly(held.name)).append(held.model.counters())
        return {name: EngineCounters.sum(parts) for name, parts in by_name.items()}

    def loads(self) -> dict[str, Load]:
        """What waits and is decoded under each name."""
        loads: dict[str, Load] = {}
        for held in self._models.held():
            load = held.model.load()
            loads[held.name] = loads[held.name] + load if held.name in loads else load
        return loads


def _by_name(models: Iterable[HeldModel]) -> dict[str, HeldModel]:
    return {held.name: held for held in sorted(models, key=lambda held: held.name)}
