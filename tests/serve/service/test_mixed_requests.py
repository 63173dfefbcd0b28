"""Outstanding requests of all kinds at once: each answer as alone, and an idle engine at the end."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import jumok
from jumok_serve import Translator
from tests.serve.service.handlers.test_service_translator import check_same
from tests.support.servers.in_process_server import check_idle

OUTSTANDING = 64
SHORT: dict[str, Any] = {"beam_size": 2, "max_length": 6}
AUTO: dict[str, Any] = {"source_language": "auto", "target_language": "de", **SHORT}
PAGE = "<html><body><p>A <b>brown</b> dog.<br>Two women.</p><pre>code</pre></body></html>\n"
UNITS = '<xliff version="1.2"><trans-unit id="1"><source>A <g id="1">brown</g> dog.</source></trans-unit></xliff>'
MESSAGES = 'msgid "A dog.\\n"\nmsgstr ""\n\nmsgid "%d men"\nmsgid_plural "Men"\nmsgstr[0] ""\nmsgstr[1] "x"\n'
SRT = "1\n00:00:01,000 --> 00:00:02,500\nTwo women\nare talking.\n\n2\n00:00:03,000 --> 00:00:04,000\nA dog.\n"
Answer = str | list[jumok.Translation] | list[float] | list[list[jumok.DetectedLanguage]]
Ask = Callable[[jumok.Client], Answer]


def of_file(content: str, name: str, **options: Any) -> Ask:
    def ask(client: jumok.Client) -> str:
        out = io.BytesIO()
        client.translate_file(io.BytesIO(content.encode()), out, file_format=name, **{**SHORT, **options})
        return out.getvalue().decode()

    return ask


def of_texts(*texts: str, **options: Any) -> Ask:
    return lambda client: client.translate(texts, **{**SHORT, **options})


def of_corpus(client: jumok.Client) -> list[jumok.Translation]:
    results = client.translate_iter(["A dog.", "A man.", "***"], glossary={"man": "Mann"}, **SHORT)
    return [result.translation for result in results if result.translation is not None]


def of_stream(client: jumok.Client) -> list[jumok.Translation]:
    updates = client.translate_stream("A man and a dog.", **SHORT)
    return [update.translation for update in updates if update.translation is not None]


KINDS: dict[str, Ask] = {
    "HTML file": of_file(PAGE, "html"),
    "XLIFF file": of_file(UNITS, "xliff"),
    "PO file with placeholders": of_file(MESSAGES, "po", placeholders=["percent"]),
    "SRT file with detection": of_file(SRT, "srt", **AUTO),
    "text file with terms": of_file("A dog.\n\nA man. A girl.\n", "text", glossary={"dog": "Hund"}),
    "markup": of_texts("A dog <i>runs</i>.", markup="html"),
    "markup with terms": of_texts("A <b>dog</b> runs.", markup="html", glossary={"dog": ["Hund", "Tier"]}),
    "texts with terms": of_texts("A dog. A man.", "Two dogs", glossary={"dog": "Hund", "man": "Mann"}),
    "detection and translation": of_texts("A dog.", "***", "Two women.", **AUTO),
    "detection": lambda client: client.detect_language(["A dog.", "Ein Hund rennt."]),
    "plain, greedy": of_texts("A man. A dog.", "A girl", beam_size=1),
    "several hypotheses": of_texts("A man in a blue shirt", beam_size=4, num_hypotheses=4),
    "sampling": of_texts("A man in a blue shirt", beam_size=1, sample=True, seed=3),
    "corpus": of_corpus,
    "stream": of_stream,
    "scores": lambda client: [one.score for one in client.score(["A dog."], ["Ein Hund."])],
}


def check_equal(found: Answer, wanted: Answer) -> None:
    if isinstance(found, list) and found and isinstance(found[0], jumok.Translation):
        check_same(found, wanted)  # type: ignore[arg-type]
    elif isinstance(found, list) and found and isinstance(found[0], float):
        assert found == pytest.approx(wanted, abs=1e-4)
    else:
        assert found == wanted


def test_outstanding_requests_of_all_kinds_are_as_alone(client: jumok.Client, translator: Translator) -> None:
    with ThreadPoolExecutor(OUTSTANDING) as pool:
        alone = {name: ask(client) for name, ask in KINDS.items()}
        asked = [*KINDS] * (OUTSTANDING // len(KINDS))
        assert len(asked) == OUTSTANDING
        for name, found in zip(asked, pool.map(lambda name: KINDS[name](client), asked), strict=True):
            check_equal(found, alone[name])
    check_idle(translator)
