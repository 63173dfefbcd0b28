"""Glossaries of DeepL's HTTP API, version 2 and 3, in the store of GlossaryService."""

import csv
import io
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jumok_proto.errors import GlossariesUnavailableError, InvalidArgumentError
from jumok_proto.glossaries.tsv import read_tsv, write_tsv
from jumok_proto.v1 import glossary_pb2 as messages
from jumok_serve.http.apis.deepl_calls import DEEPL
from jumok_serve.http.apis.languages import spelled_by
from jumok_serve.http.backend import Direction
from jumok_serve.http.backend import Response as Message
from jumok_serve.http.errors import renamed_fields
from jumok_serve.http.requests import text_field
from jumok_serve.http.site import Answer, Incoming, Site, route
from jumok_serve.text.terms.glossary import MAX_ENTRIES

SERVICE = "/jumok.v1.GlossaryService"
TSV = "text/tab-separated-values; charset=utf-8"
MAX_DICTIONARIES = 100
"""Dictionaries of a request."""
_FORM_FIELD = re.compile(r"dictionaries\[(\d{1,3})\]\.(\w+)")
Entry = tuple[str, str]


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


async def _call(incoming: Incoming, request: Any, kind: type[Message]) -> Message:
    name = type(request).__name__.removesuffix("Request")
    fields = {"dictionaries[0]": "entries", "dictionaries[0].tsv": "entries", "glossary": "glossary_id"}
    with renamed_fields(fields):
        return await incoming.site.backend.call(f"{SERVICE}/{name}", request, incoming.sender, kind)


# Version 2: a glossary has one dictionary.


async def _pairs(incoming: Incoming) -> Response:
    listed = await _stored(incoming)
    directions = [] if listed is None else await incoming.site.backend.directions(incoming.sender)
    return JSONResponse(
        {"supported_languages": [{"source_lang": one, "target_lang": other} for one, other in directions]}
    )


async def _create_one(incoming: Incoming) -> Response:
    request = messages.CreateGlossaryRequest(
        name=text_field(incoming.fields, "name"), dictionaries=[await _dictionary(incoming, incoming.fields)]
    )
    created = await _call(incoming, request, messages.CreateGlossaryResponse)
    return JSONResponse(_single(created.glossary), 201)


async def _list_single(incoming: Incoming) -> Response:
    stored = await _stored(incoming) or []
    return JSONResponse({"glossaries": [_single(one) for one in stored if len(one.dictionaries) == 1]})


async def _get_single(incoming: Incoming) -> Response:
    found = await _find(incoming)
    if len(found.dictionaries) != 1:
        raise InvalidArgumentError(
            f"the glossary {found.name!r} has several dictionaries: use /v3/glossaries", field="glossary_id"
        )
    return JSONResponse(_single(found))


async def _entries_as_tsv(incoming: Incoming) -> Response:
    request = messages.GetGlossaryEntriesRequest(glossary=incoming.path["id"])
    found = await _call(incoming, request, messages.GetGlossaryEntriesResponse)
    return Response(await _stored_entries(incoming, found), media_type=TSV)


async def _delete(incoming: Incoming) -> Response:
    request = messages.DeleteGlossaryRequest(glossary=incoming.path["id"])
    await _call(incoming, request, messages.DeleteGlossaryResponse)
    return Response(status_code=204)


# Version 3: a glossary has a dictionary for each of several pairs.


async def _create(incoming: Incoming) -> Response:
    request = messages.CreateGlossaryRequest(
        name=text_field(incoming.fields, "name"), dictionaries=await _dictionaries(incoming)
    )
    created = await _call(incoming, request, messages.CreateGlossaryResponse)
    return JSONResponse(_described(created.glossary), 201)


async def _list(incoming: Incoming) -> Response:
    return JSONResponse({"glossaries": [_described(one) for one in await _stored(incoming) or []]})


async def _get(incoming: Incoming) -> Response:
    return JSONResponse(_described(await _find(incoming)))


async def _update(incoming: Incoming) -> Response:
    """Rename a glossary, or add entries to its dictionaries."""
    known = await _find(incoming)
    dictionaries = await _dictionaries(incoming)
    for dictionary in dictionaries:
        if _dictionary_of(known, dictionary) is not None:
            request = _entries_request(known.id, dictionary)
            found = await _call(incoming, request, messages.GetGlossaryEntriesResponse)
            old, new = found.entries.tsv, dictionary.tsv
            dictionary.tsv = await incoming.work(partial(_merged, old, new), len(old) + len(new))
    update = messages.UpdateGlossaryRequest(
        glossary=known.id, name=text_field(incoming.fields, "name", ""), dictionaries=dictionaries
    )
    changed = await _call(incoming, update, messages.UpdateGlossaryResponse)
    return JSONResponse(_described(changed.glossary))


async def _entries(incoming: Incoming) -> Response:
    known = await _find(incoming)
    request = _entries_request(known.id, await _pair(incoming, incoming.fields))
    found = await _call(incoming, request, messages.GetGlossaryEntriesResponse)
    content = {
        "source_lang": found.entries.source_language_code,
        "target_lang": found.entries.target_language_code,
        "entries": await _stored_entries(incoming, found),
        "entries_format": "tsv",
    }
    return JSONResponse({"dictionaries": [content]})


async def _replace_dictionary(incoming: Incoming) -> Response:
    dictionary = await _dictionary(incoming, incoming.fields)
    request = messages.UpdateGlossaryRequest(glossary=incoming.path["id"], dictionaries=[dictionary])
    changed = await _call(incoming, request, messages.UpdateGlossaryResponse)
    replaced = _dictionary_of(changed.glossary, dictionary)
    assert replaced is not None
    return JSONResponse(_described_dictionary(replaced))


async def _delete_dictionary(incoming: Incoming) -> Response:
    known = await _find(incoming)
    pair = await _pair(incoming, incoming.fields)
    if _dictionary_of(known, pair) is None:
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


async def _stored_entries(incoming: Incoming, found: messages.GetGlossaryEntriesResponse) -> str:
    tsv = found.entries.tsv
    return await incoming.work(lambda: _written(_read_stored(tsv)), len(tsv))


def _entries_request(glossary: str, pair: messages.GlossaryEntries) -> messages.GetGlossaryEntriesRequest:
    return messages.GetGlossaryEntriesRequest(
        glossary=glossary,
        source_language_code=pair.source_language_code,
        target_language_code=pair.target_language_code,
    )


async def _dictionaries(incoming: Incoming) -> list[messages.GlossaryEntries]:
    """Read all dictionaries; forms have fields such as ``dictionaries[0].entries``."""
    given = incoming.fields.get("dictionaries", [])
    if not given:
        forms: dict[int, dict[str, Any]] = {}
        for name, value in incoming.fields.items():
            if found := _FORM_FIELD.fullmatch(name):
                forms.setdefault(int(found[1]), {})[found[2]] = value
        given = [forms[number] for number in sorted(forms)]
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise InvalidArgumentError("dictionaries must be a list of objects", field="dictionaries")
    if len(given) > MAX_DICTIONARIES:
        raise InvalidArgumentError(
            f"a request takes at most {MAX_DICTIONARIES} dictionaries, got {len(given)}", field="dictionaries"
        )
    return [await _dictionary(incoming, one) for one in given]


async def _dictionary(incoming: Incoming, fields: Mapping[str, Any]) -> messages.GlossaryEntries:
    """Read a pair of languages and entries."""
    pair = await _pair(incoming, fields)
    read = {"tsv": _read_tsv, "csv": _read_csv}
    if (form := text_field(fields, "entries_format", "tsv")) not in read:
        raise InvalidArgumentError(
            f"entries_format must be tsv or csv, got {reprlib.repr(form)}", field="entries_format"
        )
    entries = text_field(fields, "entries")
    try:
        pair.tsv = await incoming.work(lambda: _written(_unique(read[form](entries))), len(entries))
    except (ValueError, csv.Error) as error:
        raise InvalidArgumentError(f"entries: {error}", field="entries") from error
    if not pair.tsv:
        raise InvalidArgumentError("entries: none is given; give a source term and a target term", field="entries")
    return pair


async def _pair(incoming: Incoming, fields: Mapping[str, Any]) -> messages.GlossaryEntries:
    """Read a pair of languages that the models translate, in their spelling."""
    directions = await incoming.site.backend.directions(incoming.sender)
    source = spelled_by([one.source for one in directions], text_field(fields, "source_lang"))
    target = spelled_by([one.target for one in directions], text_field(fields, "target_lang"))
    if Direction(source, target) not in directions:
        pairs = ", ".join(f"{one.source} to {one.target}" for one in directions)
        raise InvalidArgumentError(
            f"source_lang, target_lang: no model translates from {reprlib.repr(source)} to {reprlib.repr(target)}; "
            f"choose of {pairs}",
            field="target_lang",
        )
    return messages.GlossaryEntries(source_language_code=source, target_language_code=target)


# Entries


def _read_tsv(text: str) -> Iterator[Entry]:
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        if line.strip():
            terms = line.split("\t", 2)
            if len(terms) != 2:
                raise ValueError(f"line {number} needs a source term, one tab and a target term")
            yield _terms(number, *terms)


def _read_csv(text: str) -> Iterator[Entry]:
    """Read rows with two terms; two languages may follow."""
    for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), start=1):
        if row:
            if len(row) not in {2, 4}:
                raise ValueError(f"row {number} needs a source term and a target term")
            yield _terms(number, row[0], row[1])


def _terms(number: int, source: str, target: str) -> Entry:
    if not source.strip() or not target.strip():
        raise ValueError(f"line {number} has an empty term")
    return source.strip(), target.strip()


def _unique(entries: Iterable[Entry]) -> Iterator[Entry]:
    known = set[str]()
    for source, target in entries:
        if len(known) == MAX_ENTRIES:
            raise ValueError(f"a glossary takes at most {MAX_ENTRIES} entries: leave some out")
        if _key(source) in known:
            raise ValueError(f"the source term {source!r:.60} comes twice")
        known.add(_key(source))
        yield source, target


def _key(term: str) -> str:
    return " ".join(term.split()).casefold()


def _read_stored(tsv: str) -> list[Entry]:
    """Read stored entries; this API knows one target term, so others are left out."""
    return [(line.source, line.targets[0]) for line in read_tsv(tsv)]


def _merged(old: str, new: str) -> str:
    """Add entries, and replace those with the same source terms."""
    merged = {_key(one): (one, other) for tsv in (old, new) for one, other in _read_stored(tsv)}
    return _written(merged.values())


def _written(entries: Iterable[Entry]) -> str:
    return "".join(write_tsv({source: target}) for source, target in entries)


# Responses


def _dictionary_of(
    glossary: messages.StoredGlossary, pair: messages.GlossaryEntries
) -> messages.GlossaryDictionary | None:
    wanted = (pair.source_language_code, pair.target_language_code)
    found = (one for one in glossary.dictionaries if (one.source_language_code, one.target_language_code) == wanted)
    return next(found, None)


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
