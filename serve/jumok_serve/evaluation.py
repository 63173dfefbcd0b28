"""How good a model's translations are: BLEU and chrF of a test set, with sacreBLEU's signatures."""

import gzip
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from jumok_proto.results import Translation
from jumok_serve.errors import JumokError
from jumok_serve.options import DecodingOptions
from jumok_serve.service.models import Pending

REQUEST_SENTENCES = 128
REQUESTS_UNDER_WAY = 2


class CorpusError(JumokError, ValueError):
    """Files that are no parallel text; the message says which and why."""


class Submitter(Protocol):
    """The part of a translator that an evaluation needs."""

    def submit(self, texts: Sequence[str], options: DecodingOptions, *, truncate: bool = False) -> Pending:
        """Queue texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of a test set; the signatures are what sacreBLEU needs to reproduce them."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    sentences: int
    truncated: int
    """Sentences that were too long for the model, and cut."""
    output_tokens: int
    duration_s: float
    """Translating alone, from the first sentence to the last."""


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file, plain or, by its name, gzip.

    Raises CorpusError for a file that cannot be read, or a line that is not UTF-8.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    lines = []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), start=1):
        try:
            lines.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}, line {number}, byte {error.start + 1}: 0x{line[error.start]:02x} is not UTF-8"
            ) from error
    return lines


def read_parallel(source: Path, reference: Path) -> tuple[list[str], list[str]]:
    """Read two files of as many lines each; raise CorpusError where they are not, or are empty."""
    sources, references = read_lines(source), read_lines(reference)
    if len(sources) != len(references):
        raise CorpusError(
            f"{source} has {len(sources)} lines and {reference} has {len(references)}: line n of one must be the "
            "translation of line n of the other"
        )
    if not sources:
        raise CorpusError(f"{source} has no lines")
    return sources, references


def translate_corpus(
    translator: Submitter, sources: Sequence[str], options: DecodingOptions, advance: Callable[[int], None]
) -> list[Translation]:
    """Translate sentences in order, cutting those that are too long; ``advance`` is told how many more are done."""
    translations: list[Translation] = []
    under_way: deque[Pending] = deque()

    def collect() -> None:
        done = under_way.popleft().collect()
        translations.extend(done)
        advance(len(done))

    for start in range(0, len(sources), REQUEST_SENTENCES):
        if len(under_way) == REQUESTS_UNDER_WAY:
            collect()
        under_way.append(translator.submit(sources[start : start + REQUEST_SENTENCES], options, truncate=True))
    while under_way:
        collect()
    return translations


def evaluate(
    translator: Submitter,
    sources: Sequence[str],
    references: Sequence[str],
    options: DecodingOptions,
    advance: Callable[[int], None],
) -> tuple[Evaluation, list[Translation]]:
    """Translate a test set and score it against one reference a sentence."""
    start = time.perf_counter()
    translations = translate_corpus(translator, sources, options, advance)
    duration_s = time.perf_counter() - start
    texts = [translation.text for translation in translations]
    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(texts, [list(references)]).score
    chrf_score = chrf.corpus_score(texts, [list(references)]).score
    evaluation = Evaluation(
        bleu=bleu_score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
        sentences=len(texts),
        truncated=sum(translation.source_truncated for translation in translations),
        output_tokens=sum(translation.output_token_count for translation in translations),
        duration_s=duration_s,
    )
    return evaluation, translations
