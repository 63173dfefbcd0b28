"""OpenAPI document of the APIs of other services, as far as this server has them, for random requests."""

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "maxLength": 200}
TEXTS: dict[str, Any] = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": 4}]}
FLAG: dict[str, Any] = {"enum": ["0", "1", "nonewlines", 0, 1, True]}
TAGS: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 3}]}
ENTRIES: dict[str, Any] = {
    "source_lang": {"enum": ["EN", "en", "FR"]},
    "target_lang": {"enum": ["DE", "de", "JA"]},
    "entries": {
        "enum": ["dog\tHund", '"dog",Hund', "a\tb\nc\td\r\n", "#a\tb", "a", '"', "\t", "a\tb\nA\tc", "\0\t\u2028"]
    },
    "entries_format": {"enum": ["tsv", "csv", "xml"]},
}
NAME: dict[str, Any] = {"enum": ["pets", "toys", "other", "\u0085", "%2e%2e"]}
GLOSSARY: dict[str, Any] = {
    "name": NAME,
    "dictionaries": {
        "type": "array",
        "items": {"type": "object", "properties": ENTRIES, "required": list(ENTRIES)},
        "maxItems": 3,
    },
}
PAIR = [
    {"name": name, "in": "query", "required": True, "schema": {"enum": choices}}
    for name, choices in (("source_lang", ["EN", "x"]), ("target_lang", ["DE", "x"]))
]
REQUIRED = {"q", "source", "target", "text", "target_lang", "entries"}
BODIES: dict[str, dict[str, Any]] = {
    "POST /translate": {
        "q": TEXTS,
        "source": {"enum": ["en", "auto", "xx"]},
        "target": {"enum": ["de", "en"]},
        "format": {"enum": ["text", "html", "pdf"]},
        "alternatives": {"type": "integer", "minimum": -1, "maximum": 11},
        "api_key": {"type": "string"},
    },
    "POST /detect": {"q": TEXT},
    "POST /v2/translate": {
        "text": TEXTS,
        "source_lang": {"enum": ["EN", "de"]},
        "target_lang": {"enum": ["DE", "EN-GB"]},
        "split_sentences": FLAG,
        "tag_handling": {"enum": ["html", "xml", "json"]},
        "ignore_tags": TAGS,
        "splitting_tags": TAGS,
        "non_splitting_tags": TAGS,
        "formality": {"enum": ["default", "more", "prefer_more"]},
        "glossary_id": NAME,
        "context": {"type": "string"},
    },
    "POST /v2/glossaries": {"name": NAME, **ENTRIES},
    "POST /v3/glossaries": GLOSSARY,
    "PATCH /v3/glossaries/{id}": GLOSSARY,
    "PUT /v3/glossaries/{id}/dictionaries": ENTRIES,
}
"""Fields of bodies, by method and path."""
WITHOUT_BODY = (
    "GET /languages",
    "GET /frontend/settings",
    "GET /health",
    "GET /v2/languages",
    "GET /v2/usage",
    "GET /v2/glossaries",
    "GET /v2/glossary-language-pairs",
    "GET /v2/glossaries/{id}",
    "GET /v2/glossaries/{id}/entries",
    "DELETE /v2/glossaries/{id}",
    "GET /v3/glossaries",
    "GET /v3/glossaries/{id}",
    "DELETE /v3/glossaries/{id}",
    "GET /v3/glossaries/{id}/entries",
    "DELETE /v3/glossaries/{id}/dictionaries",
)


def describe_other_apis() -> dict[str, Any]:
    """Make the document; any response but a fault of the server conforms to it."""
    paths: dict[str, Any] = {}
    for name in (*BODIES, *WITHOUT_BODY):
        verb, path = name.split(" ")
        operation: dict[str, Any] = {"responses": {"default": {"description": "Any."}}}
        paths.setdefault(path, {})[verb.lower()] = operation
        if "{id}" in path:
            operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": NAME}]
        if name in ("GET /v3/glossaries/{id}/entries", "DELETE /v3/glossaries/{id}/dictionaries"):
            operation["parameters"] += PAIR
        if name in BODIES:
            required = [field for field in BODIES[name] if field in REQUIRED]
            schema = {"type": "object", "properties": BODIES[name], "required": required}
            kinds = ("application/json", "application/x-www-form-urlencoded")
            operation["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
    return {"openapi": "3.1.0", "info": {"title": "others", "version": "1"}, "paths": paths}
