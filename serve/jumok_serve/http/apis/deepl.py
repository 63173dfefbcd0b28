"""The HTTP API of DeepL, version 2: texts, languages, usage; glossaries are beside it."""

import asyncio
import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.v1.model_pb2 import ListModelsRequest, ListModelsResponse
from jumok_serve.http.apis.deepl_glossaries import DEEPL, glossary_routes
from jumok_serve.http.apis.languages import spelled_by
from jumok_serve.http.documents import Document
from jumok_serve.http.multipart import Upload
from jumok_serve.http.requests import Fields, Meaning, meaning, text_field, texts_field
from jumok_serve.http.site import LIST_MODELS, TRANSLATE, TRANSLATE_FILE, Directions, Incoming, Site, route
from jumok_serve.http.uploads import file_settings, text_parameters, translate_later, upload_route, uploaded
from jumok_serve.manifest.language_names import language_name
from jumok_serve.manifest.languages import AUTO
from jumok_serve.service.handlers.api import Settings, check_tag_names
from jumok_serve.text.translation import Translated

UNLIMITED = 10**12
"""Number of characters by which this API means no limit."""
TAG_HANDLING: dict[str | int, MarkupKind | None] = {"": None, "html": "html", "xml": "xml"}
TAG_LISTS = ("ignore_tags", "non_splitting_tags", "splitting_tags")
SPLITTING: dict[str | int, bool] = {"0": False, "1": True, "nonewlines": True, 0: False, 1: True}
FORMALITIES = ("default", "prefer_more", "prefer_less")
"""Formalities that a model without formality may be asked for."""
REFUSED = ("style_id", "custom_instructions", "translation_memory_id")
"""Fields that change translations in ways that no model here has."""
STATUS_S = 1.0
"""Seconds that a request for a status waits for the end."""
UNKNOWN_DOCUMENT = {"message": "there is no such document; results are kept for an hour at most"}
VARIANTS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}
"""Target languages that clients name by region only."""


def deepl_routes(site: Site) -> list[Route]:
    """Make the endpoints."""
    return [
        route(site, DEEPL, "/v2/translate", "POST", _translate, calls=TRANSLATE),
        route(site, DEEPL, "/v2/languages", "GET POST", _languages, calls=LIST_MODELS),
        route(site, DEEPL, "/v2/usage", "GET POST", _usage, calls=LIST_MODELS),
        upload_route(site, DEEPL, "/v2/document", _upload),
        route(site, DEEPL, "/v2/document/{id}", "POST", _status, calls=TRANSLATE_FILE),
        route(site, DEEPL, "/v2/document/{id}/result", "POST", _result, calls=TRANSLATE_FILE),
        *glossary_routes(site),
    ]


async def _translate(incoming: Incoming) -> Response:
    directions = await incoming.site.backend.directions(incoming.sender)
    settings, texts = await incoming.work(partial(_request, incoming.fields, directions), incoming.size)
    return await incoming.translate(settings, texts, partial(_response, settings, texts))


def _response(settings: Settings, texts: Sequence[str], translated: Translated) -> dict[str, object]:
    return {
        "translations": [
            {
                "detected_source_language": (translation.source_language or settings.source).upper(),
                "text": translation.text,
                "billed_characters": len(text),
            }
            for text, translation in zip(texts, translated.translations, strict=True)
        ]
    }


def _request(fields: Fields, directions: Directions) -> tuple[Settings, list[str]]:
    """Return settings and texts of fields; takes the texts out of them, so that they are in memory once."""
    texts = texts_field(fields, "text")
    fields.pop("text")
    source, target = _pair(fields, directions)
    split = _meaning(fields, "split_sentences", SPLITTING, "1")
    markup = _meaning(fields, "tag_handling", TAG_HANDLING, "")
    rules = MarkupRules(**_tag_lists(fields))
    _refuse_unknown(fields)
    if fields.get("split_sentences") == "nonewlines":
        texts = [re.sub(r"\r\n?|\n", " ", text) for text in texts]
    parameters = text_parameters(source, target, markup, rules if markup else MarkupRules(), split=split)
    return Settings(parameters=parameters, stored_glossary=_glossary(fields)), texts


def _pair(fields: Mapping[str, Any], directions: Directions) -> tuple[str, str]:
    """Return source and target language in the models' spelling."""
    target = spelled_by(directions.all_targets, text_field(fields, "target_lang"))
    source = text_field(fields, "source_lang", "") or AUTO
    return spelled_by(directions.targets, source), target


def _meaning(fields: Fields, name: str, choices: Mapping[str | int, Meaning], default: str) -> Meaning:
    value = fields.get(name)
    return meaning(default if value is None else value, name, choices)


def _glossary(fields: Mapping[str, Any]) -> str:
    """Return the glossary that a request names, or an empty text."""
    given = fields.get("glossary_id") or fields.get("glossary_ids")
    listed = texts_field({"glossary_id": given}, "glossary_id") if given else []
    if len(listed) > 1:
        raise InvalidArgumentError("glossary_ids: one glossary can be used at a time", field="glossary_ids")
    if not listed:
        return ""
    if not fields.get("source_lang"):
        raise InvalidArgumentError("source_lang: name it if there is a glossary", field="source_lang")
    return listed[0]


def _refuse_unknown(fields: Mapping[str, Any]) -> None:
    """Refuse what would change translations, and no model has."""
    formality = text_field(fields, "formality", "default")
    if formality not in FORMALITIES:
        raise InvalidArgumentError(
            f"the models have no formality {reprlib.repr(formality)}: use {' or '.join(FORMALITIES)}", field="formality"
        )
    for name in REFUSED:
        if fields.get(name):
            raise InvalidArgumentError(f"this server has no {name}: leave it out", field=name)


def _tag_lists(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return lists of tags, which forms separate by commas."""
    given = {name: texts_field(fields, name) for name in TAG_LISTS if fields.get(name)}
    check_tag_names([item for items in given.values() for item in items], "ignore_tags")
    return {
        name: tuple(tag.strip() for item in items for tag in item.split(",") if tag.strip())
        for name, items in given.items()
    }


async def _upload(incoming: Incoming) -> Response:
    upload, fields = uploaded(incoming), incoming.fields
    name = text_field(fields, "filename", "") or upload.name
    ending = text_field(fields, "output_format", "").lower()
    if ending and ending != name.rpartition(".")[2].lower():
        raise InvalidArgumentError("output_format: files keep their format; leave it out", field="output_format")
    source, target = _pair(fields, await incoming.site.backend.directions(incoming.sender))
    _refuse_unknown(fields)
    settings = file_settings(source, target, _glossary(fields))
    upload = Upload(name, upload.content)
    document = incoming.site.documents.open(upload, incoming.owner)
    incoming.site.begin(translate_later(incoming, document, upload, settings))
    return JSONResponse({"document_id": document.id, "document_key": document.key})


def _document(incoming: Incoming) -> Document | None:
    key = text_field(incoming.fields, "document_key")
    return incoming.site.documents.find(incoming.path["id"], incoming.owner, key)


async def _status(incoming: Incoming) -> Response:
    if (document := _document(incoming)) is None:
        return JSONResponse(UNKNOWN_DOCUMENT, 404)
    with suppress(TimeoutError):
        await asyncio.wait_for(document.ended.wait(), STATUS_S)
    status = {"document_id": document.id, "status": "translating", "seconds_remaining": document.left_s}
    if document.error:
        status |= {"status": "error", "error_message": document.error}
    elif document.ended.is_set():
        status |= {"status": "done", "seconds_remaining": 0, "problems": document.problems}
    return JSONResponse(status)


async def _result(incoming: Incoming) -> Response:
    if (document := _document(incoming)) is None or document.error:
        return JSONResponse(UNKNOWN_DOCUMENT, 404)
    if not document.ended.is_set():
        return JSONResponse({"message": "the document is not translated yet: ask for its status"}, 503)
    return document.response()


async def _languages(incoming: Incoming) -> Response:
    kind = _meaning(incoming.fields, "type", {"source": "source", "target": "target"}, "source")
    await incoming.site.backend.call(LIST_MODELS, ListModelsRequest(), incoming.sender, ListModelsResponse)
    directions = await incoming.site.backend.directions(incoming.sender)
    tags = list(directions.targets) if kind == "source" else directions.all_targets
    if kind == "source":
        return JSONResponse([{"language": tag.upper(), "name": language_name(tag)} for tag in tags])
    spelled = {variant: tag for tag in tags for variant in VARIANTS.get(tag.lower(), (tag.upper(),))}
    return JSONResponse(
        [
            {"language": code, "name": language_name(code if code != tag.upper() else tag), "supports_formality": False}
            for code, tag in spelled.items()
        ]
    )


async def _usage(incoming: Incoming) -> Response:
    await incoming.call(LIST_MODELS, ListModelsRequest(), ListModelsResponse)
    characters = incoming.site.characters.of(incoming.owner)
    return JSONResponse({"character_count": characters, "character_limit": UNLIMITED})
