"""Translate fragments with wagtail-localize's translator for LibreTranslate, unmodified.

Arguments: address, key, target language. Reads a list of fragments as JSON, and writes that of their translations.
"""

import json
import sys
from types import SimpleNamespace

from django.conf import settings

settings.configure(INSTALLED_APPS=[])

from wagtail_localize.machine_translators.libretranslate import LibreTranslator  # noqa: E402
from wagtail_localize.strings import StringValue  # noqa: E402


def main() -> None:
    """Translate the fragments."""
    url, key, target = sys.argv[1:]
    translator = LibreTranslator({"LIBRETRANSLATE_URL": url, "API_KEY": key})
    strings = [StringValue(fragment) for fragment in json.load(sys.stdin)]
    source, locale = (SimpleNamespace(language_code=code) for code in ("en", target))
    found = translator.translate(source, locale, strings)
    json.dump([found[string].data for string in strings], sys.stdout)


if __name__ == "__main__":
    main()
