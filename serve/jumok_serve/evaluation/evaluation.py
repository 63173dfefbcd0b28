"""BLEU and chrF of a model on a test set, with sacreBLEU's signatures."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from jumok_proto.results import Translation
from jumok_serve.text.translation import Pending

REQUEST_SENTENCES = 128
CONCURRENT_REQUESTS = 4


Submit = Callable[[Sequence[str]], Pending]
"""Function that queues texts, such as a translator's ``submit`` with its parameters given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of a test set.

    Attributes:
        bleu, chrf: scores; BLEU is None without a tokenizer.
        bleu_signature, chrf_signature: sacreBLEU's signatures, which reproduce the scores.
        truncated: number of sentences that were too long for the model.
        output_tokens: number of tokens written.
        duration_s: time to translate, without scoring.
    """

    bleu: float | None
    bleu_signature: str | None
    chrf: float
    chrf_signature: str
    sentences: int
    truncated: int
    output_tokens: int
    duration_s: float


def translate_corpus(submit: Submit, sources: Sequence[str], advance: Callable[[int], None]) -> list[Translation]:
    """Translate sentences in order; ``advance`` is called with the number of further finished ones."""
    translations: list[Translation] = []
    pending: deque[Pending] = deque()

    def collect() -> None:
        done = pending.popleft().collect()
        translations.extend(done)
        advance(len(done))

    for start in range(0, len(sources), REQUEST_SENTENCES):
        if len(pending) == CONCURRENT_REQUESTS:
            collect()
        pending.append(submit(sources[start : start + REQUEST_SENTENCES]))
    while pending:
        collect()
    return translations


def evaluate(
    submit: Submit,
    sources: Sequence[str],
    references: Sequence[str],
    advance: Callable[[int], None],
    *,
    tokenizer: str | None,
) -> tuple[Evaluation, list[Translation]]:
    """Translate a test set and score it against one reference per sentence.

    Args:
        tokenizer: sacreBLEU's name of BLEU's tokenizer, see `jumok_serve.evaluation.parallel_text`; None: no BLEU.
    """
    start = time.perf_counter()
    translations = translate_corpus(submit, sources, advance)
    duration_s = time.perf_counter() - start
    texts = [translation.text for translation in translations]
    bleu, chrf = None if tokenizer is None else BLEU(tokenize=tokenizer), CHRF()
    chrf_score = chrf.corpus_score(texts, [list(references)]).score
    evaluation = Evaluation(
        bleu=None if bleu is None else bleu.corpus_score(texts, [list(references)]).score,
        bleu_signature=None if bleu is None else str(bleu.get_signature()),
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
        sentences=len(texts),
        truncated=sum(translation.source_truncated for translation in translations),
        output_tokens=sum(translation.output_token_count for translation in translations),
        duration_s=duration_s,
    )
    return evaluation, translations
