"""Lists of languages, and their spelling by models."""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial

from starlette.responses import JSONResponse, Response

from jumok_serve.http.requests import JSON
from jumok_serve.http.site import Directions, Incoming
from jumok_serve.manifest.languages import tag_key

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
