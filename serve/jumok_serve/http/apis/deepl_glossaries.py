"""DeepL's glossaries."""

import csv
import io
import re
import reprlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import UTC
from functools import partial
from typing import Any, Final, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jumok_proto.errors import GlossariesUnavailableError, InvalidArgumentError
from jumok_proto.glossaries import read_tsv, write_tsv
from jumok_proto.v1 import glossary_pb2 as messages
from jumok_serve.http.apis.languages import listed_languages, spelled_by
from jumok_serve.http.requests import Fields, meaning, parse_fields, text_field
from jumok_serve.http.site import (
    Answer,
    Called,
    Dialect,
    Directions,
    Incoming,
    Site,
    route,
    status_of_others,
)
from jumok_serve.manifest.languages import MAX_LISTED, tag_key
from jumok_serve.service.rpc.call import BEARER

DEEPL = Dialect(
    error=lambda _, status: {"message": status.message},
    status=status_of_others,
    fields={
        "contents": "text",
        "source_language_code": "source_lang",
        "target_language_code": "target_lang",
        "markup": "tag_handling",
        "markup_rules": "tag_handling",
        "glossary": "glossary_id",
        "glossary.stored": "glossary_id",
        "dictionaries[0]": "entries",
        "dictionaries[0].tsv": "entries",
    },
    schemes=("DeepL-Auth-Key ", BEARER),
    parse=partial(parse_fields, default=""),
)
SERVICE = "/jumok.v1.GlossaryService"
TSV = "text/tab-separated-values; charset=utf-8"
MAX_DICTIONARIES = 100
"""Dictionaries of a request."""
ENTRIES_WORK = 32
"""Work with a byte of entries, in bytes of JSON."""
_FORM_FIELD = re.compile(r"dictionaries\[(\d{1,3})\]\.(\w+)")
Entry = tuple[str, str]
Made = TypeVar("Made")


def glossary_routes(site: Site) -> list[Route]:
    """Make the endpoints."""
    endpoints: list[tuple[str, str, Answer]] = [
        ("GET", "/v2/glossary-language-pairs", _pairs),
        ("POST", "/v2/glossaries", _create_one),
        ("GET", "/v2/glossaries", _list_single),
        ("GET", "/v2/glossaries/{id}", _get_single),
        ("GET", "/v2/glossaries/{id}/entries", _entries_as_tsv),
        ("DELETE", "/v2/glossaries/{id}", _delete),
        ("POST", "/v3/glossaries", _create),
        ("GET", "/v3/glossaries", _list),
        ("GET", "/v3/glossaries/{id}", _get),
        ("PATCH", "/v3/glossaries/{id}", _update),
        ("DELETE", "/v3/glossaries/{id}", _delete),
        ("GET", "/v3/glossaries/{id}/entries", _entries),
        ("PUT", "/v3/glossaries/{id}/dictionaries", _replace_dictionary),
        ("DELETE", "/v3/glossaries/{id}/dictionaries", _delete_dictionary),
    ]
    return [
        route(site, DEEPL, path, verb, answer, calls=f"{SERVICE}/ListGlossaries") for verb, path, answer in endpoints
    ]


async def _call(incoming: Incoming, request: Any, kind: type[Called]) -> Called:
    name = type(request).__name__.removesuffix("Request")
    return await incoming.call(f"{SERVICE}/{name}", request, kind)


# Version 2: a glossary has one dictionary.


async def _pairs(incoming: Incoming) -> Response:
    listed = await _stored(incoming)
    directions = Directions() if listed is None else await incoming.site.backend.directions(incoming.sender)
    return await listed_languages(incoming, directions, _described_pairs)


def _described_pairs(directions: Directions) -> object:
    pairs = [
        {"source_lang": one, "target_lang": other} for one, others in directions.targets.items() for other in others
    ]
    return {"supported_languages": pairs}


async def _create_one(incoming: Incoming) -> Response:
    created = await _created(incoming, lambda fields, directions: [_dictionary(fields, directions)])
    return JSONResponse(_single(created), 201)


async def _list_single(incoming: Incoming) -> Response:
    stored = await _stored(incoming) or []
    return await _list_of(incoming, _single, [one for one in stored if len(one.dictionaries) == 1])


async def _get_single(incoming: Incoming) -> Response:
    found = await _find(incoming)
    if len(found.dictionaries) != 1:
        raise InvalidArgumentError(
            f"the glossary {found.name!r} has several dictionaries: use /v3/glossaries", field="glossary_id"
        )
    return JSONResponse(_single(found))


async def _entries_as_tsv(incoming: Incoming) -> Response:
    found = await _stored_entries(incoming, incoming.path["id"], messages.GlossaryEntries())
    return await incoming.work(lambda: Response(_entries_of(found), media_type=TSV), _work_of(found.tsv))


async def _delete(incoming: Incoming) -> Response:
    request = messages.DeleteGlossaryRequest(glossary=incoming.path["id"])
    await _call(incoming, request, messages.DeleteGlossaryResponse)
    return Response(status_code=204)


# Version 3: a glossary has a dictionary for each of several pairs.


async def _create(incoming: Incoming) -> Response:
    return await _answer(incoming, await _created(incoming, _dictionaries), 201)


async def _list(incoming: Incoming) -> Response:
    return await _list_of(incoming, _described, await _stored(incoming) or [])


async def _get(incoming: Incoming) -> Response:
    return await _answer(incoming, await _find(incoming))


async def _update(incoming: Incoming) -> Response:
    """Rename a glossary, or add entries to its dictionaries."""
    known = await _find(incoming)
    dictionaries = await _read(incoming, _dictionaries)
    stored = _by_languages(known)
    for dictionary in dictionaries:
        if _languages_of(dictionary) in stored:
            old, new = (await _stored_entries(incoming, known.id, dictionary)).tsv, dictionary.tsv
            dictionary.tsv = await incoming.work(partial(_merged, old, new), _work_of(old, new))
    update = messages.UpdateGlossaryRequest(
        glossary=known.id, name=text_field(incoming.fields, "name", ""), dictionaries=dictionaries
    )
    changed = await _call(incoming, update, messages.UpdateGlossaryResponse)
    return await _answer(incoming, changed.glossary)


async def _entries(incoming: Incoming) -> Response:
    known = await _find(incoming)
    found = await _stored_entries(incoming, known.id, await _read(incoming, _pair))
    return await incoming.json(lambda: {"dictionaries": [_described_entries(found)]}, _work_of(found.tsv))


async def _replace_dictionary(incoming: Incoming) -> Response:
    dictionary = await _read(incoming, _dictionary)
    request = messages.UpdateGlossaryRequest(glossary=incoming.path["id"], dictionaries=[dictionary])
    changed = await _call(incoming, request, messages.UpdateGlossaryResponse)
    return JSONResponse(_described_dictionary(_by_languages(changed.glossary)[_languages_of(dictionary)]))


async def _delete_dictionary(incoming: Incoming) -> Response:
    known = await _find(incoming)
    pair = await _read(incoming, _pair)
    if _languages_of(pair) not in _by_languages(known):
        raise InvalidArgumentError(f"the glossary {known.name!r} has no such dictionary", field="source_lang")
    request = messages.UpdateGlossaryRequest(glossary=known.id, dictionaries=[pair])
    await _call(incoming, request, messages.UpdateGlossaryResponse)
    return Response(status_code=204)


# Requests


async def _stored(incoming: Incoming) -> Sequence[messages.StoredGlossary] | None:
    """Return the caller's glossaries; None if the server keeps none."""
    try:
        listed = await _call(incoming, messages.ListGlossariesRequest(), messages.ListGlossariesResponse)
    except GlossariesUnavailableError:
        return None
    return listed.glossaries


async def _find(incoming: Incoming) -> messages.StoredGlossary:
    request = messages.GetGlossaryRequest(glossary=incoming.path["id"])
    return (await _call(incoming, request, messages.GetGlossaryResponse)).glossary


async def _created(
    incoming: Incoming, read: Callable[[Fields, Directions], list[messages.GlossaryEntries]]
) -> messages.StoredGlossary:
    """Store the glossary of a request, whose dictionaries the given function reads."""
    name = text_field(incoming.fields, "name")
    request = messages.CreateGlossaryRequest(name=name, dictionaries=await _read(incoming, read))
    return (await _call(incoming, request, messages.CreateGlossaryResponse)).glossary


async def _stored_entries(
    incoming: Incoming, glossary: str, pair: messages.GlossaryEntries
) -> messages.GlossaryEntries:
    """Return the entries of a pair of languages, or without languages those of a glossary that has one pair."""
    request = messages.GetGlossaryEntriesRequest(
        glossary=glossary,
        source_language_code=pair.source_language_code,
        target_language_code=pair.target_language_code,
    )
    return (await _call(incoming, request, messages.GetGlossaryEntriesResponse)).entries


async def _read(incoming: Incoming, read: Callable[[Fields, Directions], Made]) -> Made:
    """Read fields at once: many dictionaries may each be small."""
    directions = await incoming.site.backend.directions(incoming.sender)
    return await incoming.work(partial(read, incoming.fields, directions), ENTRIES_WORK * incoming.size)


def _work_of(*tsvs: str) -> int:
    return ENTRIES_WORK * sum(map(len, tsvs))


def _dictionaries(fields: Fields, directions: Directions) -> list[messages.GlossaryEntries]:
    """Read all dictionaries; forms have fields such as ``dictionaries[0].entries``."""
    given = fields.get("dictionaries", [])
    if not given:
        forms: dict[int, dict[str, Any]] = {}
        for name, value in fields.items():
            if found := _FORM_FIELD.fullmatch(name):
                forms.setdefault(int(found[1]), {})[found[2]] = value
        given = [forms[number] for number in sorted(forms)]
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise InvalidArgumentError("dictionaries must be a list of objects", field="dictionaries")
    if len(given) > MAX_DICTIONARIES:
        raise InvalidArgumentError(
            f"a request takes at most {MAX_DICTIONARIES} dictionaries, got {len(given)}", field="dictionaries"
        )
    return [_dictionary(one, directions) for one in given]


def _dictionary(fields: Fields, directions: Directions) -> messages.GlossaryEntries:
    """Read a pair of languages and entries."""
    pair = _pair(fields, directions)
    read = meaning(text_field(fields, "entries_format", "tsv"), "entries_format", _READERS)
    entries = text_field(fields, "entries")
    try:
        pair.tsv = _written(_unique(read(entries)))
    except (ValueError, csv.Error) as error:
        raise InvalidArgumentError(f"entries: {error}", field="entries") from error
    if not pair.tsv:
        raise InvalidArgumentError("entries: none is given; give a source term and a target term", field="entries")
    return pair


def _pair(fields: Fields, directions: Directions) -> messages.GlossaryEntries:
    """Read a pair of languages that the models translate, in their spelling."""
    source = spelled_by(directions.targets, text_field(fields, "source_lang"))
    target = spelled_by(directions.all_targets, text_field(fields, "target_lang"))
    if target not in directions.targets.get(source, ()):
        pairs = ", ".join(f"{one} to {other}" for one, other in directions.pairs[:MAX_LISTED])
        more = ", ..." if len(directions.pairs) > MAX_LISTED else ""
        raise InvalidArgumentError(
            f"source_lang, target_lang: no model translates from {reprlib.repr(source)} to {reprlib.repr(target)}; "
            f"choose of {pairs}{more}",
            field="target_lang",
        )
    return messages.GlossaryEntries(source_language_code=source, target_language_code=target)


# Entries


def _rows(text: str, name: str, lengths: Sequence[int], **dialect: Any) -> Iterator[Entry]:
    """Read rows with two terms; two languages may follow if a length is four."""
    for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True, **dialect), start=1):
        terms = [cell.strip() for cell in row]
        if not any(terms):
            continue
        if len(terms) not in lengths:
            raise ValueError(f"{name} {number} needs a source term and a target term")
        if not (terms[0] and terms[1]):
            raise ValueError(f"{name} {number} has an empty term")
        yield terms[0], terms[1]


_READERS: Final[dict[str | int, Callable[[str], Iterator[Entry]]]] = {
    "tsv": partial(_rows, name="line", lengths=(2,), delimiter="\t", quoting=csv.QUOTE_NONE),
    "csv": partial(_rows, name="row", lengths=(2, 4)),
}
"""Readers of entries by their format."""


def _unique(entries: Iterable[Entry]) -> Iterator[Entry]:
    known = set[str]()
    for source, target in entries:
        if _key(source) in known:
            raise ValueError(f"the source term {source!r:.60} comes twice")
        known.add(_key(source))
        yield source, target


def _key(term: str) -> str:
    return " ".join(term.split()).casefold()


def _merged(old: str, new: str) -> str:
    """Add entries, and replace those with the same source terms."""
    merged = {_key(line.source): (line.source, line.targets) for tsv in (old, new) for line in read_tsv(tsv)}
    return _written(merged.values())


def _written(entries: Iterable[tuple[str, str | Sequence[str]]]) -> str:
    return "".join(write_tsv({source: target}) for source, target in entries)


# Responses


def _by_languages(glossary: messages.StoredGlossary) -> dict[tuple[str, str], messages.GlossaryDictionary]:
    return {_languages_of(one): one for one in glossary.dictionaries}


def _languages_of(one: messages.GlossaryDictionary | messages.GlossaryEntries) -> tuple[str, str]:
    """Return two languages in one spelling, as the store does."""
    return tag_key(one.source_language_code), tag_key(one.target_language_code)


def _list_of(
    incoming: Incoming,
    describe: Callable[[messages.StoredGlossary], dict[str, object]],
    stored: Sequence[messages.StoredGlossary],
) -> Coroutine[Any, Any, Response]:
    return incoming.json(
        lambda: {"glossaries": [describe(one) for one in stored]}, sum(one.ByteSize() for one in stored)
    )


def _answer(incoming: Incoming, glossary: messages.StoredGlossary, status: int = 200) -> Coroutine[Any, Any, Response]:
    return incoming.json(lambda: _described(glossary), glossary.ByteSize(), status)


def _described_entries(found: messages.GlossaryEntries) -> dict[str, object]:
    return {
        "source_lang": found.source_language_code,
        "target_lang": found.target_language_code,
        "entries": _entries_of(found),
        "entries_format": "tsv",
    }


def _entries_of(found: messages.GlossaryEntries) -> str:
    """Write stored entries; this API knows one target term, so others are left out."""
    return _written((line.source, line.targets[0]) for line in read_tsv(found.tsv))


def _described(glossary: messages.StoredGlossary) -> dict[str, object]:
    return {
        "glossary_id": glossary.id,
        "name": glossary.name,
        "dictionaries": [_described_dictionary(one) for one in glossary.dictionaries],
        "creation_time": glossary.create_time.ToDatetime(UTC).isoformat(timespec="microseconds"),
    }


def _described_dictionary(dictionary: messages.GlossaryDictionary) -> dict[str, object]:
    return {
        "source_lang": dictionary.source_language_code,
        "target_lang": dictionary.target_language_code,
        "entry_count": dictionary.entry_count,
    }


def _single(glossary: messages.StoredGlossary) -> dict[str, object]:
    described = _described(glossary)
    del described["dictionaries"]
    return {**described, **_described_dictionary(glossary.dictionaries[0]), "ready": True}
