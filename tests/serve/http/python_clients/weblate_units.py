"""Translate texts with Weblate's machinery, unmodified; run with Weblate on the path, but no database.

Arguments: class (LibreTranslate or DeepL), address, key, target language. Reads a list of [text, flags] as JSON, and
writes the list of what Weblate would store.
"""

import json
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

for name in ("cairo", "gi", "gi.repository", "borg", "standardwebhooks"):  # of pictures, backups and hooks
    sys.modules[name] = MagicMock()

import django  # noqa: E402
import weblate.settings_example as example  # noqa: E402
from django.conf import settings  # noqa: E402

memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
values = {
    **{name: getattr(example, name) for name in dir(example) if name.isupper()},
    "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    "CACHES": {"default": memory, "avatar": memory},
    "SECRET_KEY": "none",
}
settings.configure(**values)
django.setup()

from django.core.cache import cache  # noqa: E402
from weblate.checks.flags import Flags  # noqa: E402
from weblate.lang.models import Language  # noqa: E402
from weblate.machinery.deepl import DeepLTranslation  # noqa: E402
from weblate.machinery.libretranslate import LibreTranslateTranslation  # noqa: E402

cache.set("glossary", "")


def unit(text: str, flags: str, target: str) -> SimpleNamespace:
    """Return what a machinery reads of a unit."""
    project = SimpleNamespace(id=1, get_glossary_tsv_cache_key=lambda *_: "glossary")
    component = SimpleNamespace(source_language=Language(code="en"), project=project, file_format_flags="")
    return SimpleNamespace(
        all_flags=Flags(flags),
        translation=SimpleNamespace(component=component, language=Language(code=target)),
        source_string=text,
        source=text,
        is_source=False,
        get_source_plurals=lambda: [text],
        pk=1,
        check_cache={},
    )


def main() -> None:
    """Translate the texts."""
    api, url, key, target = sys.argv[1:]
    deepl = api == "DeepL"
    machinery = (DeepLTranslation if deepl else LibreTranslateTranslation)({"key": key, "url": url})
    languages = ("EN", target.upper()) if deepl else ("en", target)
    given = json.load(sys.stdin)
    found = machinery._translate(*languages, [(text, unit(text, flags, target)) for text, flags in given])
    json.dump([found[text][0]["text"] for text, _ in given], sys.stdout)


if __name__ == "__main__":
    main()
