"""Choice of the models that translate between two languages: one, or two over a pivot language."""

from collections.abc import Mapping
from functools import cached_property

from jumok_proto.errors import LanguageNotFoundError
from jumok_proto.results import Route
from jumok_serve.manifest.language_codes import tag_key
from jumok_serve.manifest.languages import MAX_LISTED, Languages


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
