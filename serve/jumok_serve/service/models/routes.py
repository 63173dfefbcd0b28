"""Choice of the model that translates between two languages."""

from collections.abc import Mapping

from jumok_proto.errors import LanguageNotFoundError
from jumok_serve.manifest.languages import MAX_LISTED, Languages


class Routes:
    """Models of a server by the languages that they translate.

    Args:
        models: languages of each model, by its name; the first of several candidates is chosen.
    """

    def __init__(self, models: Mapping[str, Languages]) -> None:
        self._pairs: dict[tuple[str, str], str] = {}  # by the pair as models spell it
        self._direct: dict[tuple[str, str], str] = {}
        for name, languages in models.items():
            default = () if languages.default is None else ((languages.default.source, languages.default.target),)
            for source, target in (*languages.all_pairs, *default):
                if self._direct.setdefault((_key(source), _key(target)), name) == name:
                    self._pairs[source, target] = name

    def find(self, source: str, target: str) -> str:
        """Return the name of the model for two languages, in any case and with ``-`` or ``_``.

        Raises:
            LanguageNotFoundError: no model has the pair.
        """
        name = self._direct.get((_key(source), _key(target)))
        if name is not None:
            return name
        pairs = [f"{tag} to {other} ({name})" for (tag, other), name in sorted(self._pairs.items())]
        more = f" and {len(pairs) - MAX_LISTED} more" if len(pairs) > MAX_LISTED else ""
        raise LanguageNotFoundError(
            f"no model translates from {source!r} to {target!r}; the pairs are {', '.join(pairs[:MAX_LISTED])}{more}",
            field="target_language_code",
        )


def _key(tag: str) -> str:
    return tag.replace("_", "-").casefold()
