"""Calls whose answers a refactoring must not change: each option, task, format and API, usable and not."""

import base64
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from jumok_proto.v1 import alignment_pb2, file_pb2, glossary_pb2, model_pb2, translation_pb2

SHORT = "A man in a blue shirt is standing on a ladder."
LONG = f"{SHORT} Two dogs run in the snow! A girl, who is small, plays with a ball. {'A man walks. ' * 40}"
TEXTS = (
    SHORT,
    "",
    "  \n",
    "a dog",
    LONG,
    "ein Hund \U0001f600 ***",
    "A man {name} sees %s at http://a.example/b?c=d .",
)
HTML = "<p>A <b>man</b> in a <a href='x'>blue</a> shirt.<br/>A dog &amp; a cat.</p><code>A dog</code>"
XML = '<t>A <g id="1">man</g> in a <x id="2"/>blue shirt. <n>A dog</n></t>'
OPTIONS: Mapping[str, Sequence[Any]] = {
    "beam_size": (1, 4, 64, 0, 65),
    "num_hypotheses": (1, 4, 5, 0),
    "length_penalty": (-1.0, 0.0, 2.0, 11.0, "NaN"),
    "early_stopping": ("EARLY_STOPPING_IMMEDIATE", "EARLY_STOPPING_NEVER", 9),
    "min_length": (0, 20, 2000),
    "max_length": (1, 5, 100000, 0),
    "no_repeat_ngram_size": (1, 2, -1),
    "repetition_penalty": (0.5, 2.0, 0.0),
    "suppress_tokens": ({"ids": [4, 5]}, {"ids": [99999999]}, {"ids": []}),
    "end_tokens": ({"ids": [3, 7]}, {"ids": []}),
    "forced_first_token": (9, -1, 99999999),
    "temperature": (0.5, 0.0),
    "top_k": (3, -1),
    "top_p": (0.5, 1.5),
    "seed": (7, -1),
    "coverage_penalty": (0.3, -1.0),
    "replace_unknowns": (True,),
}
FILES: Mapping[str, str] = {
    "a.txt": "A man.\n\nTwo dogs run.  \n",
    "a.md": "# A man\n\n- a [dog](http://a.example)\n- `code` and *snow*\n\n| a | b |\n|---|---|\n| a dog | a cat |\n",
    "a.html": f"<!doctype html><html><head><title>A dog</title></head><body>{HTML}</body></html>",
    "a.po": 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "A man %s"\nmsgstr ""\n',
    "a.xliff": '<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file '
    'original="a" source-language="en" target-language="de" datatype="plaintext"><body><trans-unit id="1"><source>A '
    "man</source></trans-unit></body></file></xliff>",
    "a.srt": "1\n00:00:01,000 --> 00:00:02,000\nA man\nin a shirt.\n\n2\n00:00:03,000 --> 00:00:04,000\nA dog.\n",
    "a.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n<i>A man</i> runs.\n",
    "a.bin": "A man",
    "b.xliff": "<xliff><a></xliff>",
}
PATHS: Sequence[str] = (
    *("/", "/health", "/languages", "/frontend/settings", "/openapi.json", "/v2/languages", "/v2/usage", "/nothing"),
    *("/v1/models", "/v1/models/nothing", "/v1/glossaries", "/v1/glossaries/pets/entries"),
    *("/v2/glossaries", "/v3/glossaries", "/v2/glossary-language-pairs"),
)
CALLS = "/jumok.v1."


class GrpcCall(NamedTuple):
    """A call: full name of its method, and what it sends."""

    method: str
    messages: tuple[Message, ...]


class HttpCall(NamedTuple):
    """A request over HTTP; `body` is JSON, or a form if `form` is set."""

    verb: str
    path: str
    body: Any = None
    form: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def data(self) -> bytes | None:
        """The body's bytes."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return urlencode(self.body, doseq=True).encode() if self.form else json.dumps(self.body).encode()

    @property
    def kind(self) -> str:
        """The body's content type."""
        return "application/x-www-form-urlencoded" if self.form else "application/json"


def _translation(method: str, **fields: Any) -> GrpcCall:
    kind = {"TranslateText": translation_pb2.TranslateTextRequest, "AlignText": alignment_pb2.AlignTextRequest}
    kind |= {"ScoreText": translation_pb2.ScoreTextRequest, "DetectLanguage": translation_pb2.DetectLanguageRequest}
    kind |= {"StreamTranslateText": translation_pb2.StreamTranslateTextRequest}
    return GrpcCall(f"{CALLS}TranslationService/{method}", (ParseDict(fields, kind[method]()),))


def _texts() -> Iterator[dict[str, Any]]:
    """Yield the fields of requests besides their options."""
    for split, truncate in itertools.product((False, True), repeat=2):
        yield {"contents": list(TEXTS), "split_sentences": split, "truncate": truncate}
    for text in TEXTS:
        yield {"contents": [text]}
        yield {"contents": [text], "attention": True}
        yield {"contents": [text], "split_sentences": True, "copy_unreadable": True, "cut_long_sentences": True}
    for markup, text in (("MARKUP_HTML", HTML), ("MARKUP_XML", XML), ("MARKUP_XML", "<a>"), (7, "a")):
        yield {"contents": [text, SHORT], "markup": markup}
        yield {
            "contents": [text],
            "markup": markup,
            "markup_rules": {"ignore_tags": ["n", "code"], "splitting_tags": ["x"]},
        }
    for source, target in (("en", "de"), ("EN", "de_DE"), ("ko", "de"), ("auto", "de"), ("de", "en"), ("xx", "")):
        yield {"contents": [SHORT, "a dog"], "source_language_code": source, "target_language_code": target}
    yield {"contents": ["\ud55c\uad6d\uc5b4 \ubb38\uc11c", SHORT], "source_language_code": "auto"}
    yield {"contents": [SHORT], "target_prefixes": ["Ein"]}
    yield {"contents": [SHORT], "target_prefixes": ["Ein", "Zwei"]}
    yield {"contents": [SHORT], "model": "nothing"}
    yield {"contents": [], "model": "multi30k-en-de-transformer"}
    glossaries: Sequence[dict[str, list[str]]] = (
        {"man": ["Kerl"], "dog": ["Katze", "Maus"]},
        {"": ["a"]},
        {"a": []},
        {"blue shirt": ["blaue Jacke"]},
    )
    for glossary in glossaries:
        entries = [{"source": source, "targets": targets} for source, targets in glossary.items()]
        yield {"contents": list(TEXTS), "glossary": {"entries": entries}}
        yield {"contents": [HTML], "markup": "MARKUP_HTML", "glossary": {"entries": entries}, "split_sentences": True}
    yield {"contents": [SHORT], "glossary": {"stored": "missing"}}
    yield {"contents": [SHORT], "glossary": {"stored": "pets"}}
    yield {"contents": list(TEXTS), "do_not_translate": {"kinds": list(range(1, 19)), "patterns": ["l*r", "blue"]}}
    yield {"contents": [*TEXTS, "Ask {name} about %1$s."], "keep_placeholders": True}
    yield {"contents": [SHORT], "do_not_translate": {"kinds": [99]}}
    yield {"contents": [SHORT], "do_not_translate": {"patterns": [""]}}


def grpc_calls() -> Iterator[GrpcCall]:
    """Yield calls of every service, in their order."""
    model = "multi30k-en-de-transformer"
    yield GrpcCall(f"{CALLS}ModelService/ListModels", (model_pb2.ListModelsRequest(),))
    for name in (model, "", "nothing"):
        yield GrpcCall(f"{CALLS}ModelService/GetModel", (model_pb2.GetModelRequest(name=name),))
    yield from _glossary_calls()
    for fields in _texts():
        yield _translation("TranslateText", **({"model": model} | fields))
        if len(fields["contents"]) == 1 and "markup" not in fields:
            single = {"model": model} | fields | {"content": fields["contents"][0]}
            prefixes = single.pop("target_prefixes", [""])
            del single["contents"]
            yield _translation("StreamTranslateText", target_prefix=prefixes[0], **single)
    for name, values in OPTIONS.items():
        for value in values:
            sampled = {"seed": 3} if name in {"temperature", "top_k", "top_p"} else {}
            for more in ({}, {"split_sentences": True}):
                yield _translation(
                    "TranslateText", model=model, contents=[SHORT], options={name: value} | sampled, **more
                )
            yield _translation("StreamTranslateText", model=model, content=SHORT, options={name: value} | sampled)
    yield _translation("TranslateText", model=model, contents=[SHORT], options={"beam_size": 1, "num_hypotheses": 2})
    for targets in (["Ein Mann."], ["", "a"], []):
        yield _translation("ScoreText", model=model, contents=[SHORT], targets=targets)
        for kinds in (["ATTENTION_KIND_CROSS"], ["ATTENTION_KIND_ENCODER", "ATTENTION_KIND_DECODER"], [8]):
            yield _translation("AlignText", model=model, contents=[SHORT], targets=targets, kinds=kinds, each_head=True)
    yield _translation("AlignText", model=model, contents=[SHORT], layer=0, head=99)
    yield _translation("DetectLanguage", contents=list(TEXTS))
    for settings in ({"model": model}, {"model": model, "split_sentences": True, "window": 2}, {"window": -1}, None):
        items = [{"id": number, "content": text} for number, text in enumerate(TEXTS)]
        first = {"items": items} if settings is None else {"settings": settings, "items": items}
        corpus = ParseDict(first, translation_pb2.TranslateCorpusRequest())
        yield GrpcCall(f"{CALLS}TranslationService/TranslateCorpus", (corpus,))
    for name, content in FILES.items():
        for translation in ({"model": model}, {"model": model, "split_sentences": True}, {"model": model, "window": 1}):
            of_file = {"settings": {"name": name, "translation": translation}}
            message = ParseDict(of_file, file_pb2.TranslateFileRequest())
            message.file = content.encode()
            yield GrpcCall(f"{CALLS}FileService/TranslateFile", (message,))


def _glossary_calls() -> Iterator[GrpcCall]:
    service = f"{CALLS}GlossaryService"
    entries = {"source_language_code": "en", "target_language_code": "de", "tsv": "dog\tHund\nman\tKerl\n"}
    for dictionaries in ([entries], [], [entries, entries], [entries | {"tsv": "dog\n"}]):
        fields = {"name": "pets", "dictionaries": dictionaries}
        yield GrpcCall(f"{service}/CreateGlossary", (ParseDict(fields, glossary_pb2.CreateGlossaryRequest()),))
    yield GrpcCall(f"{service}/ListGlossaries", (glossary_pb2.ListGlossariesRequest(),))
    for name in ("pets", "missing", ""):
        yield GrpcCall(f"{service}/GetGlossary", (glossary_pb2.GetGlossaryRequest(glossary=name),))
        fields = {"glossary": name, "source_language_code": "en", "target_language_code": "de"}
        yield GrpcCall(f"{service}/GetGlossaryEntries", (ParseDict(fields, glossary_pb2.GetGlossaryEntriesRequest()),))


def http_calls() -> Iterator[HttpCall]:
    """Yield requests to every API over HTTP, in their order."""
    for verb, path in itertools.product(("GET", "POST", "DELETE"), PATHS):
        yield HttpCall(verb, path)
    for fields in _texts():
        yield HttpCall("POST", "/v1/text:translate", {"model": "multi30k-en-de-transformer"} | fields)
    for body in (b"", b"{", b"[]", b'{"contents": 1}', b'{"nothing": 1}', b'{"options": {"beam_size": 1e400}}'):
        for path in ("/v1/text:translate", "/translate", "/v2/translate"):
            yield HttpCall("POST", path, body)
    yield HttpCall("POST", "/v1/text:streamTranslate", {"content": SHORT, "model": "multi30k-en-de-transformer"})
    for text, form, kind in itertools.product((*TEXTS, list(TEXTS), HTML), (False, True), ("text", "html", "pdf")):
        yield HttpCall("POST", "/translate", {"q": text, "source": "en", "target": "de", "format": kind}, form)
    for source, target in (("auto", "de"), ("en", "xx"), ("ko", "de")):
        yield HttpCall("POST", "/translate", {"q": SHORT, "source": source, "target": target, "alternatives": 2})
        yield HttpCall("POST", "/v2/translate", {"text": [SHORT], "source_lang": source, "target_lang": target})
    yield HttpCall("POST", "/detect", {"q": SHORT})
    for more in ({}, {"split_sentences": "0"}, {"tag_handling": "html"}, {"tag_handling": "xml", "ignore_tags": "n"},
                 {"formality": "more"}, {"glossary_id": "missing"}, {"tag_handling": "json"}):  # fmt: skip
        for text, form in itertools.product((SHORT, HTML, LONG), (False, True)):
            request = {"text": text if form else [text], "source_lang": "EN", "target_lang": "DE", **more}
            yield HttpCall("POST", "/v2/translate", request, form)
    for origin in ("http://elsewhere.example", "null"):
        yield HttpCall("POST", "/translate", {"q": "a", "source": "en", "target": "de"}, headers=(("Origin", origin),))
    for name, content in FILES.items():
        settings = {"name": name, "translation": {"model": "multi30k-en-de-transformer"}}
        yield HttpCall(
            "POST", "/v1/files:translate", {"settings": settings, "file": base64.b64encode(content.encode()).decode()}
        )
