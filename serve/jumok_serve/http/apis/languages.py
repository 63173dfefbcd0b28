"""Names of languages, and their spelling by models."""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial

from starlette.responses import JSONResponse, Response

from jumok_serve.http.requests import JSON
from jumok_serve.http.site import Directions, Incoming
from jumok_serve.manifest.languages import tag_key

# ISO 639-1, and some codes of three letters.
_NAMES = """
af Afrikaans|am Amharic|ar Arabic|as Assamese|ast Asturian|az Azerbaijani|ba Bashkir|be Belarusian|bg Bulgarian
bm Bambara|bn Bengali|bo Tibetan|br Breton|bs Bosnian|ca Catalan|ceb Cebuano|co Corsican|cs Czech|cv Chuvash|cy Welsh
da Danish|de German|dv Divehi|dz Dzongkha|ee Ewe|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque
fa Persian|ff Fulah|fi Finnish|fil Filipino|fj Fijian|fo Faroese|fr French|fy Western Frisian|ga Irish
gd Scottish Gaelic|gl Galician|gn Guarani|gu Gujarati|gv Manx|ha Hausa|he Hebrew|hi Hindi|hr Croatian|ht Haitian Creole
hu Hungarian|hy Armenian|ia Interlingua|id Indonesian|ig Igbo|ilo Iloko|is Icelandic|it Italian|ja Japanese|jv Javanese
ka Georgian|kk Kazakh|km Khmer|kn Kannada|ko Korean|ku Kurdish|ky Kyrgyz|la Latin|lb Luxembourgish|lg Ganda
li Limburgish|ln Lingala|lo Lao|lt Lithuanian|lv Latvian|mg Malagasy|mi Maori|mk Macedonian|ml Malayalam|mn Mongolian
mr Marathi|ms Malay|mt Maltese|my Burmese|nb Norwegian Bokmål|ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian
nso Northern Sotho|ny Nyanja|oc Occitan|om Oromo|or Odia|os Ossetian|pa Punjabi|pl Polish|ps Pashto|pt Portuguese
qu Quechua|rm Romansh|rn Rundi|ro Romanian|ru Russian|rw Kinyarwanda|sa Sanskrit|sc Sardinian|sd Sindhi|se Northern Sami
si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona|so Somali|sq Albanian|sr Serbian|ss Swati|st Southern Sotho
su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu|tg Tajik|th Thai|ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana
to Tongan|tr Turkish|ts Tsonga|tt Tatar|ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|vi Vietnamese|wo Wolof|xh Xhosa
yi Yiddish|yo Yoruba|zh Chinese|zu Zulu
"""
_BY_CODE = dict(entry.split(" ", 1) for line in _NAMES.split("\n") if line for entry in line.split("|"))

PAIR_BYTES = 8
"""Bytes of a pair of languages in a list of all, at least."""
MAX_LISTS = 8
"""Lists of all languages that are kept, of two APIs and several sets of models."""
MAX_TAG = 100
"""Characters of a tag that is compared with others."""


async def listed_languages(
    incoming: Incoming, directions: Directions, describe: Callable[[Directions], object]
) -> Response:
    """Respond with JSON about all languages, which is made once for a set of models."""
    content = await incoming.work(partial(_written, describe, directions), PAIR_BYTES * len(directions.pairs))
    return Response(content, media_type=JSON)


@lru_cache(MAX_LISTS)
def _written(describe: Callable[[Directions], object], directions: Directions) -> bytes:
    return bytes(JSONResponse(describe(directions)).body)


def language_name(tag: str) -> str:
    """Return the name of a language, with its other subtags in brackets; of an unknown code the tag."""
    code, _, rest = tag.replace("_", "-").partition("-")
    name = _BY_CODE.get(code.lower())
    if name is None:
        return tag
    return f"{name} ({rest})" if rest else name


def spelled_by(tags: Iterable[str], tag: str) -> str:
    """Return the tag in a model's spelling: the same, else without region, else the only one of its language.

    A tag that none of ``tags`` stands for is returned as it is.
    """
    if len(tag) > MAX_TAG:
        return tag
    known = {tag_key(one): one for one in tags}
    wanted = tag_key(tag)
    language = wanted.partition("-")[0]
    for key in (wanted, language):
        if key in known:
            return known[key]
    variants = [one for key, one in known.items() if key.partition("-")[0] == language]
    return variants[0] if len(variants) == 1 else tag
