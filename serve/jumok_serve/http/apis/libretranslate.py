"""The HTTP API of LibreTranslate."""

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jumok_proto.file_formats import FILE_FORMATS
from jumok_proto.markup import MarkupKind
from jumok_serve.http.apis.languages import listed_languages
from jumok_serve.http.requests import Fields, meaning, number_field, text_field, texts_field
from jumok_serve.http.site import DETECT, TRANSLATE, Dialect, Directions, Incoming, Site, route, status_of_others
from jumok_serve.http.uploads import file_settings, text_parameters, translate, upload_route, uploaded
from jumok_serve.manifest.language_names import language_name
from jumok_serve.manifest.languages import is_auto
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.api import Settings
from jumok_serve.text.translation import Translated

FORMATS: dict[str | int, MarkupKind | None] = {"text": None, "html": "html"}
MAX_ALTERNATIVES = 10
MIN_BEAM_SIZE = 5
"""Beam size of a request for alternatives, if they are fewer."""


def libretranslate_routes(site: Site) -> list[Route]:
    """Make the endpoints."""
    return [
        route(site, LIBRETRANSLATE, "/translate", "POST", _translate, calls=TRANSLATE),
        upload_route(site, LIBRETRANSLATE, "/translate_file", _translate_file),
        route(site, LIBRETRANSLATE, "/download_file/{name}", "GET", _download),
        route(site, LIBRETRANSLATE, "/detect", "POST", _detect, calls=DETECT),
        route(site, LIBRETRANSLATE, "/languages", "GET", _languages),
        route(site, LIBRETRANSLATE, "/frontend/settings", "GET", _settings),
        route(site, LIBRETRANSLATE, "/health", "GET", _health),
    ]


LIBRETRANSLATE = Dialect(
    error=lambda _, status: {"error": status.message},
    status=status_of_others,
    fields={
        "contents": "q",
        "source_language_code": "source",
        "target_language_code": "target",
        "options.num_hypotheses": "alternatives",
        "markup": "format",
    },
    key_field="api_key",
)


async def _translate(incoming: Incoming) -> Response:
    several = isinstance(incoming.fields.get("q"), list)
    settings, texts = await incoming.work(partial(_request, incoming.fields), incoming.size)
    return await incoming.translate(settings, texts, partial(_response, settings, several))


def _response(settings: Settings, several: bool, translated: Translated) -> dict[str, Any]:
    hypotheses = [[one.text for one in translation.hypotheses] for translation in translated.translations]
    content: dict[str, Any] = {"translatedText": [best for best, *_ in hypotheses]}
    if settings.parameters.options.num_hypotheses is not None:
        content["alternatives"] = [list(dict.fromkeys(texts))[1:] for texts in hypotheses]
    if is_auto(settings.source):
        content["detectedLanguage"] = [
            _detected(translation.source_language, translation.source_confidence or 0)
            for translation in translated.translations
        ]
    return content if several else {name: values[0] for name, values in content.items()}


def _request(fields: Fields) -> tuple[Settings, list[str]]:
    """Return settings and texts of fields; takes the texts out of them, so that they are in memory once."""
    texts = texts_field(fields, "q")
    fields.pop("q")
    source, target = text_field(fields, "source"), text_field(fields, "target")
    alternatives = number_field(fields, "alternatives", MAX_ALTERNATIVES)
    markup = meaning(text_field(fields, "format", "text"), "format", FORMATS)
    parameters = text_parameters(source, target, markup, split=not alternatives)
    if alternatives:
        options = DecodingOptions(num_hypotheses=alternatives + 1, beam_size=max(MIN_BEAM_SIZE, alternatives + 1))
        parameters = replace(parameters, options=options)
    return Settings(parameters=parameters), texts


async def _translate_file(incoming: Incoming) -> Response:
    upload = uploaded(incoming)
    settings = file_settings(text_field(incoming.fields, "source"), text_field(incoming.fields, "target"))
    document = incoming.site.documents.open(upload, incoming.owner)
    try:
        await translate(incoming, document, upload, settings)
    except BaseException:
        incoming.site.documents.drop(document)
        raise
    host = incoming.headers.get("host", "")
    url = f"{incoming.scope['scheme']}://{host}/download_file/{document.id}.{quote(document.name, safe='')}"
    return JSONResponse({"translatedFileUrl": url, "problems": document.problems})


async def _download(incoming: Incoming) -> Response:
    document = incoming.site.documents.find(incoming.path["name"].partition(".")[0], None, None)
    if document is None or not document.ended.is_set():
        return JSONResponse({"error": "there is no such file; results are kept for an hour at most"}, 404)
    return document.response()


def _detected(language: str, confidence: float) -> dict[str, object]:
    return {"confidence": round(100 * confidence), "language": language}


async def _detect(incoming: Incoming) -> Response:
    text = text_field(incoming.fields, "q")
    (languages,) = await incoming.site.backend.detect([text], incoming.sender)
    return JSONResponse([_detected(language, confidence) for language, confidence in languages])


async def _languages(incoming: Incoming) -> Response:
    directions = await incoming.site.backend.directions(incoming.sender)
    return await listed_languages(incoming, directions, _described_languages)


def _described_languages(directions: Directions) -> object:
    """Describe all languages; clients check target languages against this list too."""
    return [
        {"code": code, "name": language_name(code), "targets": list(directions.targets.get(code, ()))}
        for code in sorted({*directions.targets, *directions.all_targets})
    ]


async def _settings(incoming: Incoming) -> Response:
    directions = await incoming.site.backend.directions(incoming.sender)
    needs_key = incoming.site.backend.needs_token
    return JSONResponse(
        {
            "apiKeys": needs_key,
            "charLimit": incoming.site.limits.max_characters,
            "filesTranslation": True,
            "frontendTimeout": 500,
            "keyRequired": needs_key,
            "language": {
                role: {"code": code, "name": language_name(code)}
                for role, code in zip(("source", "target"), (*directions.pairs, ("", ""))[0], strict=True)
            },
            "suggestions": False,
            "supportedFilesFormat": [f".{ending}" for ending in chain.from_iterable(FILE_FORMATS.values())],
        }
    )


async def _health(incoming: Incoming) -> Response:
    if incoming.site.backend.serving:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "the server is being stopped"}, 503)
