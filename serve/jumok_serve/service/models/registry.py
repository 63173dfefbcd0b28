"""Registry of the server's models, and the choice of those of a request."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError, ModelNotFoundError
from jumok_proto.results import ModelState, Route
from jumok_serve.engine.statistics import EngineCounters, Load
from jumok_serve.errors import DuplicateModelError
from jumok_serve.manifest.languages import MAX_LISTED, Languages, tag_key
from jumok_serve.text.detection import sources_into
from jumok_serve.translator import Translator


class ChosenModels(NamedTuple):
    """The models of a request: one, or two that translate one after the other.

    Attributes:
        models: models, first to last.
        pivot: language between two models.
    """

    models: tuple[Translator, ...]
    pivot: str = ""

    @property
    def last(self) -> Translator:
        """The model that writes the translations."""
        return self.models[-1]

    def languages(self, source: str, target: str) -> tuple[str, str]:
        """Return the first model's source and the last model's target language, as the models spell them.

        Args:
            source, target: languages of the request; empty: the model's default.
        """
        first, last = self.models[0].manifest.languages, self.last.manifest.languages
        middle = self.pivot if len(self.models) > 1 else None
        of_first = first.direction(source or None, middle or target or None)
        return of_first.source, last.direction(middle or source or None, target or None).target

    def only(self, work: str) -> Translator:
        """Return the only model, for work that two cannot do together.

        Raises:
            InvalidArgumentError: the request has two models.
        """
        if len(self.models) > 1:
            names = " and ".join(model.manifest.name for model in self.models)
            raise InvalidArgumentError(
                f"{work} takes one model, but these languages take two, {names}: name the model of the request",
                field="model",
            )
        return self.last


class Routes:
    """Models of a server by the languages that they translate.

    Args:
        models: languages of each model, by its name; the first of several candidates is chosen.
        pivot: language that connects two models if no model has a pair; empty: none.

    Attributes:
        shared: pairs that several models have, by the models' names; the first is chosen.
    """

    def __init__(self, models: Mapping[str, Languages], pivot: str = "") -> None:
        self.pivot = pivot
        self._pairs: dict[tuple[str, str], str] = {}  # by the pair as models spell it
        self._direct: dict[tuple[str, str], str] = {}
        others: dict[tuple[str, str], list[str]] = {}  # models that are not chosen
        spelled: dict[tuple[str, str], tuple[str, str]] = {}
        for name, languages in models.items():
            default = () if languages.default is None else ((languages.default.source, languages.default.target),)
            for source, target in (*languages.all_pairs, *default):
                pair = tag_key(source), tag_key(target)
                spelled.setdefault(pair, (source, target))
                if self._direct.setdefault(pair, name) == name:
                    self._pairs[source, target] = name
                elif name not in others.setdefault(pair, []):
                    others[pair].append(name)
        self.shared: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        for pair, names in others.items():
            self.shared.setdefault((self._direct[pair], *names), []).append(spelled[pair])

    def find(self, source: str, target: str) -> tuple[str, ...]:
        """Return the names of the models between two languages, in any case and with ``-`` or ``_``: one or two.

        Raises:
            LanguageNotFoundError: neither a model nor a route has the pair.
        """
        first, middle, last = tag_key(source), tag_key(self.pivot), tag_key(target)
        if (first, last) in self._direct:
            return (self._direct[first, last],)
        if first != last and (first, middle) in self._direct and (middle, last) in self._direct:
            return self._direct[first, middle], self._direct[middle, last]
        pairs = [f"{tag} to {other} ({name})" for (tag, other), name in sorted(self._pairs.items())]
        more = f" and {len(pairs) - MAX_LISTED} more" if len(pairs) > MAX_LISTED else ""
        over = f", directly or over {self.pivot}" if self.pivot else ""
        raise LanguageNotFoundError(
            f"no model translates from {source!r} to {target!r}{over}; the pairs are "
            f"{', '.join(pairs[:MAX_LISTED])}{more}",
            field="target_language_code",
        )

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs as models spell them, those over the pivot included, sorted."""
        return tuple(sorted({*self._pairs, *((route.source, route.target) for route in self.over_pivot)}))

    @cached_property
    def over_pivot(self) -> tuple[Route, ...]:
        """Pairs that no model has and two models have together, sorted by languages."""
        pivot = tag_key(self.pivot)
        sources = {source: name for (source, target), name in self._pairs.items() if tag_key(target) == pivot}
        targets = {target: name for (source, target), name in self._pairs.items() if tag_key(source) == pivot}
        return tuple(
            Route(source=source, target=target, models=(first, last))
            for source, first in sorted(sources.items())
            for target, last in sorted(targets.items())
            if tag_key(source) != tag_key(target) and (tag_key(source), tag_key(target)) not in self._direct
        )


logger = logging.getLogger(__name__)


class ModelEntry:
    """A model and the number of its calls; event loop only.

    Attributes:
        draining: True if no further call may use it.
    """

    def __init__(self, model: Translator) -> None:
        self.model = model
        self.draining = False
        self._calls = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.manifest.name

    @property
    def state(self) -> ModelState:
        """State that callers see."""
        if self.draining:
            return ModelState.DRAINING
        return ModelState.SERVING if self.model.ready else ModelState.RECOVERING

    @contextmanager
    def used(self) -> Iterator[Translator]:
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
        """Wait for the last call to end."""
        await self._unused.wait()


@dataclass(frozen=True)
class _Snapshot:
    """Immutable content of a registry.

    Attributes:
        serving: models that take requests, by name; of several with one pair of languages the first translates it.
        draining: models that only finish their calls.
        pivot: language over which two models translate together; empty: none do.
        past_counters: counters of closed models whose name is still held, by name.
    """

    pivot: str
    serving: dict[str, ModelEntry]
    draining: tuple[ModelEntry, ...] = ()
    past_counters: dict[str, EngineCounters] = field(default_factory=dict)

    @cached_property
    def routes(self) -> Routes:
        """Models that take requests, by the languages that they translate."""
        return Routes({name: entry.model.manifest.languages for name, entry in self.serving.items()}, self.pivot)

    def entries(self) -> list[ModelEntry]:
        return sorted((*self.serving.values(), *self.draining), key=lambda entry: entry.name)

    def past_counters_of(self, name: str) -> list[EngineCounters]:
        return [self.past_counters[name]] if name in self.past_counters else []


class ModelRegistry:
    """Models of one server; names of models that take requests are unique.

    Changed by the event loop only, read by any thread.

    Args:
        models: models; of several with one pair of languages the first translates it.
        pivot: language over which two models translate a pair that no model has; empty: none.

    Raises:
        DuplicateModelError: two models have the same name.
    """

    def __init__(self, models: Sequence[Translator], pivot: str = "") -> None:
        names = [model.manifest.name for model in models]
        for name in names:
            if names.count(name) > 1:
                raise DuplicateModelError(name)
        self._models = _Snapshot(
            pivot, {model.manifest.name: ModelEntry(model) for model in models}
        )  # replaced at every change, for other threads
        self._name_shared_pairs()

    def __iter__(self) -> Iterator[Translator]:
        """Models that take requests, in the order of their start; a replaced one keeps its place."""
        return (entry.model for entry in self._models.serving.values())

    def entries(self) -> list[ModelEntry]:
        """All models, sorted by name; replaced ones follow the one that takes requests."""
        return self._models.entries()

    def are_full(self, caller: str) -> bool:
        """True if the queues of all models are full for a caller."""
        serving = self._models.serving
        return bool(serving) and all(entry.model.is_full(caller) for entry in serving.values())

    def find(self, name: str) -> ModelEntry:
        """Return the model of a name; raise ModelNotFoundError if there is none."""
        serving = self._models.serving
        if name not in serving:
            raise ModelNotFoundError.of(name, list(serving))
        return serving[name]

    def routes(self) -> tuple[Route, ...]:
        """Pairs that no model has and two models have together."""
        return self._models.routes.over_pivot

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs that a request without a model may name, sorted."""
        return self._models.routes.pairs

    @property
    def num_sources(self) -> int:
        """Number of the source languages of all models."""
        return len({tag_key(source) for source, _ in self.pairs()})

    def languages(self) -> set[str]:
        """All languages of the models that take requests."""
        return {tag for model in self for tag in (*model.manifest.languages.sources, *model.manifest.languages.targets)}

    def sources_into(self, name: str, target: str) -> tuple[list[str], str]:
        """Return the source languages of requests with a model's name, or none, and a target language, or none.

        Languages that take two models come last. The target language is returned too, as models spell it.

        Raises:
            ModelNotFoundError: no model has the name, or there are no models.
            LanguageNotFoundError: no model translates into the target language.
            InvalidArgumentError: neither a name nor a target among several models.
        """
        over_pivot = {(route.source, route.target) for route in self.routes()}
        pairs = sorted(self.pairs(), key=over_pivot.__contains__)  # those of one model first
        wanted = tag_key(target)
        found = [pair for pair in pairs if target and tag_key(pair[1]) == wanted]
        if not name and found:
            return list(dict.fromkeys(source for source, _ in found)), found[0][1]
        if not name and len(self._models.serving) > 1:
            self._choose("auto" if target else "", target)  # raises
        only = self.find(name or next(iter(self._models.serving), "")).model
        return sources_into(only.manifest.languages, target or None)

    @contextmanager
    def use(self, name: str, source: str = "", target: str = "") -> Iterator[ChosenModels]:
        """Keep the models of a request open.

        An empty name means the model that has both languages, then the two that have them over the pivot, then the only
        model.

        Raises:
            ModelNotFoundError: no model has the name, or there are no models.
            LanguageNotFoundError: none of several models has both languages.
            InvalidArgumentError: neither a name nor both languages among several models.
        """
        names = (name,) if name else self._choose(source, target)
        with ExitStack() as used:
            models = tuple(used.enter_context(self.find(chosen).used()) for chosen in names)
            yield ChosenModels(models, self._models.pivot)

    def _name_shared_pairs(self, before: _Snapshot | None = None) -> None:
        """Name the models that share a pair of languages, unless they shared one before."""
        for names, pairs in self._models.routes.shared.items():
            if before is None or names not in before.routes.shared:
                first, *others = names
                more = f", and {len(pairs) - 1} more" if len(pairs) > 1 else ""
                logger.info(
                    "%s and %s translate %s to %s%s: requests without a model's name go to %s, the first that was "
                    "named; name the model in requests to choose, as with --model %s",
                    ", ".join((first, *others[:-1])), others[-1], *pairs[0], more, first, others[0],
                )  # fmt: skip

    def _choose(self, source: str, target: str) -> tuple[str, ...]:
        serving = self._models.serving
        if source and target:
            try:
                return self._models.routes.find(source, target)
            except LanguageNotFoundError:
                if len(serving) > 1:
                    raise
        elif len(serving) > 1:
            raise InvalidArgumentError(
                f"name a model, or both languages: this server holds {', '.join(serving)}", field="model"
            )
        return (next(iter(serving), ""),)

    def register(self, model: Translator) -> ModelEntry | None:
        """Route requests to a model; return the replaced one, to be drained."""
        entry = ModelEntry(model)
        models = self._models
        replaced = models.serving.get(entry.name)
        draining = models.draining
        if replaced is not None:
            replaced.draining = True
            draining = (*draining, replaced)
        serving = models.serving | {entry.name: entry}
        self._models = replace(models, serving=serving, draining=draining)
        self._name_shared_pairs(models)
        return replaced

    def unregister(self, name: str) -> ModelEntry:
        """Route no more requests to a name; return its model, which must be drained.

        Raises:
            ModelNotFoundError: no model has the name.
        """
        entry = self.find(name)
        models = self._models
        entry.draining = True
        others = {other: kept for other, kept in models.serving.items() if other != name}
        self._models = replace(models, serving=others, draining=(*models.draining, entry))
        return entry

    def forget(self, entry: ModelEntry) -> None:
        """Drop a drained model; its counters stay while another model has its name."""
        name, models = entry.name, self._models
        left = tuple(other for other in models.draining if other is not entry)
        kept = {other: counters for other, counters in models.past_counters.items() if other != name}
        if name in models.serving or any(other.name == name for other in left):
            kept[name] = EngineCounters.sum([*models.past_counters_of(name), entry.model.counters()])
        self._models = replace(models, draining=left, past_counters=kept)

    def counters(self) -> dict[str, EngineCounters]:
        """Counters by name, summed over the model and those it replaced."""
        models = self._models
        by_name: dict[str, list[EngineCounters]] = {}
        for entry in models.entries():
            by_name.setdefault(entry.name, models.past_counters_of(entry.name)).append(entry.model.counters())
        return {name: EngineCounters.sum(parts) for name, parts in by_name.items()}

    def loads(self) -> dict[str, Load]:
        """Queued and running work by name."""
        loads: dict[str, Load] = {}
        for entry in self._models.entries():
            load = entry.model.load()
            loads[entry.name] = loads[entry.name] + load if entry.name in loads else load
        return loads
