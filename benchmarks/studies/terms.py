"""Measure search with terms: random rare words of the references, as Post and Vilar (2018) did.

Each source sentence gets some words of its reference translation as terms. The terms must appear and raise BLEU;
translating with them is slower than without. Rounds with and without terms take turns.

With `--peer`, the search of Post and Vilar (dynamic beam allocation) finds translations with the same model and terms,
and as many rows: about an hour for 1,000 sentences. The rows of a beam are shared out among banks. A bank has the
hypotheses with the same number of tokens of terms. Each bank gets as many rows, the one with all terms the rest, and
rows that a bank has no candidates for go to the nearest. A hypothesis follows one reading of its tokens: it may miss a
term that begins inside of another one.

With `--replace`, a glossary gives nouns another translation than the model's. The terms must appear, and the words that
they replace must not: words that the translation without terms has, and that begin like a usual translation.
"""

import argparse
import random
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias
from unittest.mock import patch

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from benchmarks.common.data import TRANSFORMER, corpus
from benchmarks.common.progress import progress, setup
from benchmarks.common.ratios import aligned, ratio, turns
from benchmarks.common.trained import dequantized
from jumok_export.models.seq2seq import Seq2Seq
from jumok_proto.results import Translation
from jumok_serve import DecodingOptions, Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.evaluation.parallel_text import read_parallel
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.tasks.particles import particles
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.terms import TermMatch

RARE = 50
"""Most occurrences of a rare word in the training references."""
SEED = 1
PEER_LENGTH = 80
"""Most new tokens of the peer's translations."""


class GivenTerms(NamedTuple):
    """Words that the translation of one text must contain; a `TermFinder`."""

    words: tuple[str, ...]

    def find(self, text: str) -> list[TermMatch]:
        """Return a match at the beginning of the text for each word."""
        return [TermMatch(0, 0, (word,)) for word in self.words]


def rare_words(references: Sequence[str], counts: Mapping[str, int], most: int) -> list[tuple[str, ...]]:
    """Return up to `most` random rare words of each reference, in their order."""
    generator = random.Random(SEED)
    chosen = []
    for reference in references:
        words = [word for word in re.findall(r"[^\W\d_]{3,}", reference) if counts[word] <= RARE]
        places = sorted(generator.sample(range(len(words)), min(most, len(words))))
        chosen.append(tuple(words[place] for place in places))
    return chosen


Term: TypeAlias = tuple[int, ...]
"""Token ids."""


class Progress(NamedTuple):
    """Progress of a hypothesis in its terms.

    Attributes:
        left: indices of the terms that it does not have, ascending.
        current: index of the term that it is writing, or None.
        written: tokens of that term so far.
    """

    left: tuple[int, ...]
    current: int | None = None
    written: int = 0

    def following(self, terms: Sequence[Term]) -> set[int]:
        """Return the tokens that bring a term forward: of the one being written, or the first of any that is left."""
        if self.current is not None:
            return {terms[self.current][self.written]}
        return {terms[index][0] for index in self.left}

    def after(self, token: int, terms: Sequence[Term]) -> "Progress":
        """Return the progress after a token; a term that is interrupted is lost."""
        begun = [(self.current, self.written)] if self.current is not None else []
        for index, written in (*begun, *((index, 0) for index in self.left)):
            if terms[index][written] == token:
                if written + 1 < len(terms[index]):
                    return Progress(self.left, index, written + 1)
                return Progress(tuple(other for other in self.left if other != index))
        return Progress(self.left)

    def tokens(self, terms: Sequence[Term]) -> int:
        """Return the number of tokens of terms that it has."""
        return sum(map(len, terms)) - sum(len(terms[index]) for index in self.left) + self.written


class Candidate(NamedTuple):
    """New tokens with the sum of their log-probabilities."""

    score: float
    row: int
    token_ids: tuple[int, ...]
    progress: Progress


def bank_rows(rows: int, candidates: Sequence[int]) -> list[int]:
    """Return the rows of each bank.

    Args:
        rows: rows of the beam.
        candidates: candidates of each bank, [banks].
    """
    banks = len(candidates)
    wanted = [rows // banks] * (banks - 1) + [rows - rows // banks * (banks - 1)]
    given = [min(pair) for pair in zip(wanted, candidates, strict=True)]
    for bank in reversed(range(banks)):
        spare = max(0, wanted[bank] - candidates[bank])
        for _, other in sorted((abs(other - bank), other) for other in range(banks)):
            moved = min(spare, candidates[other] - given[other])
            given[other] += moved
            spare -= moved
    return given


@torch.no_grad()
def search(
    model: Seq2Seq,
    source_ids: Sequence[int],
    terms: Sequence[Term],
    *,
    start: int,
    end: int,
    rows: int,
    max_length: int,
) -> list[int]:
    """Return a translation that has all terms, without its end token; empty if there is none.

    It is the best by score / length of those that end until there are `rows`.

    Args:
        model: the model.
        source_ids: tokens of the source, end token included.
        terms: tokens of each term.
        start: token that decoding starts with.
        end: end token, written only after all terms.
        rows: rows of the beam.
        max_length: most new tokens.
    """
    lengths = torch.tensor([len(source_ids)])
    memory, first_state = model.encode(torch.tensor([source_ids]), lengths)
    state = first_state or model.empty_state()
    beam = [Candidate(0.0, 0, (), Progress(tuple(range(len(terms)))))]
    tokens, parents, ended = [start], [0], list[Candidate]()
    for position in range(max_length):
        count = len(beam)
        logits, state = model.step(
            torch.tensor(tokens),
            torch.full((count,), position),
            torch.tensor(parents),
            lengths,
            memory,
            state,
        )
        scores = logits.log_softmax(-1) + torch.tensor([[one.score] for one in beam])  # [rows, V]
        banks: dict[int, list[Candidate]] = defaultdict(list)
        for candidate in _candidates(beam, scores, terms, end, rows):
            banks[candidate.progress.tokens(terms)].append(candidate)
        total = sum(map(len, terms))
        allowed = bank_rows(rows, [len(banks[bank]) for bank in range(total + 1)])
        kept = [
            one for bank, most in enumerate(allowed) for one in sorted(banks[bank], key=_score, reverse=True)[:most]
        ]
        ended += [one for one in kept if one.token_ids[-1] == end]
        beam = [one for one in kept if one.token_ids[-1] != end]
        if len(ended) >= rows or not beam:
            break
        tokens, parents = [one.token_ids[-1] for one in beam], [one.row for one in beam]
    best = max(ended, key=lambda one: one.score / len(one.token_ids), default=None)
    return [] if best is None else list(best.token_ids[:-1])


def _score(hypothesis: Candidate) -> float:
    return hypothesis.score


def _candidates(
    beam: Sequence[Candidate], scores: torch.Tensor, terms: Sequence[Term], end: int, rows: int
) -> Iterator[Candidate]:
    """Yield the best continuations of all, the best of each row, and those that bring a term forward."""
    # The end of each row may be refused.
    best = scores.flatten().topk(min(rows + len(beam), scores.numel())).indices.tolist()
    chosen = {divmod(place, scores.shape[1]) for place in best}
    chosen |= set(enumerate(scores.argmax(-1).tolist()))
    for row, hypothesis in enumerate(beam):
        chosen |= {(row, token) for token in hypothesis.progress.following(terms)}
    for row, token in sorted(chosen):
        hypothesis = beam[row]
        if token == end and hypothesis.progress.left:
            continue
        yield Candidate(
            float(scores[row, token]),
            row,
            (*hypothesis.token_ids, token),
            hypothesis.progress.after(token, terms),
        )


class Peer:
    """Search by dynamic beam allocation, with the dequantized weights of an int8 bundle.

    Raises:
        ValueError: the model is no Transformer.
    """

    def __init__(self, folder: Path) -> None:
        bundle = Bundle.open(folder)
        self._tokenizer, special = bundle.tokenizer, bundle.manifest.special_tokens
        self._start, self._end = special.start, special.eos[0]
        self._model = dequantized(folder)

    def translate(self, text: str, words: Sequence[str], beam_size: int) -> str:
        """Return a translation with all words, if the search finds one, with as many rows as our search has."""
        rows = max(beam_size, 1 << (2 * len(words) + 1).bit_length() if words else 1)
        found = search(
            self._model,
            [*self._tokenizer.encode(text), self._end],
            [tuple(self._tokenizer.encode_target(word)) for word in words],
            start=self._start,
            end=self._end,
            rows=rows,
            max_length=PEER_LENGTH,
        )
        return self._tokenizer.decode(found)


def translate(
    translator: Translator, texts: Sequence[str], terms: Sequence[tuple[str, ...]], beam_size: int
) -> tuple[list[str], float]:
    """Translate all texts at once, each with its own terms; returns translations, and the seconds that they took."""
    options = DecodingOptions(beam_size=beam_size)
    started = time.perf_counter()
    pending = [
        translator.submit([text], TranslationParameters(options=options, terms=GivenTerms(words) if words else None))
        for text, words in zip(texts, terms, strict=True)
    ]
    translations = [one.collect()[0].text for one in pending]
    return translations, time.perf_counter() - started


class Replacement(NamedTuple):
    """Another translation of a noun, and beginnings of the usual ones."""

    target: str
    usual: tuple[str, ...]

    def count(self, text: str) -> int:
        """Count the usual words of a text; after those of one Korean syllable, as many others begin, only particles."""
        found = re.finditer(rf"(?<!\w)({'|'.join(self.usual)})(\w*)", text.replace(self.target, " ").lower())
        return sum(len(one[1]) > 1 or not one[2] or len(one[2]) in particles(one[0]) for one in found)


def read_replacements(file: Path, language: str) -> dict[str, Replacement]:
    """Read the nouns of a glossary, and their translations into German or Korean."""
    lines = [line.split("\t") for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    column = {"de": 1, "ko": 3}[language]
    return {line[0]: Replacement(line[column], tuple(line[column + 1].split("|"))) for line in lines}


def without_terms(text: str, replacements: Mapping[str, Replacement]) -> str:
    """Leave out the words of a glossary and the usual ones."""
    words = {word for one in replacements.values() for word in (one.target, *one.usual)}
    return re.sub(rf"(?i)(?<!\w)(?:{'|'.join(sorted(words, key=len, reverse=True))})\w*", "", text)


def replaced(source: str, free: str, translation: Translation, replacements: Mapping[str, Replacement]) -> Counter[str]:
    """Count the terms of a translation: given, present, known by a usual word in the free one, and in place.

    Nouns with the same usual words count together. A usual word may stay for another form of the noun, as that of
    `format` for `formats`, and if it is the target of another term.
    """
    counts: Counter[str] = Counter()
    given = Counter(replacements[one.source.lower()] for one in translation.hypotheses[0].terms)
    nouns = {one.source.lower() for one in translation.hypotheses[0].terms}
    forms = Counter(word for word in re.findall(r"\w+", source.lower()) if word not in nouns)
    for usual in {one.usual for one in given}:
        own = {one: number for one, number in given.items() if one.usual == usual}
        total = sum(own.values())
        present = sum(min(number, translation.text.count(one.target)) for one, number in own.items())
        counts.update(given=total, present=present)
        text, any_of = translation.text, next(iter(own))
        for other, number in given.items():
            text = text.replace(other.target, " ", -1 if other in own else number)
        if before := any_of.count(free):
            stems = tuple(noun for noun in nouns if replacements[noun].usual == usual)
            others = sum(number for word, number in forms.items() if word.startswith(stems))
            left = max(0, any_of.count(text) - max(before - total, min(before, others)))
            counts.update(known=total, placed=present - min(present, left))
    return counts


def replace_words(arguments: argparse.Namespace) -> None:
    """Measure terms in place of the model's words, before and after they are placed by alignment."""
    with Translator(arguments.model, precision=arguments.precision, threads=arguments.threads) as translator:
        default = translator.manifest.languages.default
        replacements = read_replacements(arguments.glossary, "de" if default is None else default.target)
        nouns = re.compile(rf"(?i)(?<!\w)(?:{'|'.join(replacements)})(?!\w)")
        pairs = [pair for pair in zip(*read_parallel(*arguments.replace), strict=True) if nouns.search(pair[0])]
        pairs = pairs[:: max(1, len(pairs) // arguments.sentences)][: arguments.sentences]
        texts, references = [source for source, _ in pairs], [without_terms(one, replacements) for _, one in pairs]
        glossary = {noun: one.target for noun, one in replacements.items()}
        translator.warm_up()
        rows = [["terms", "given", "appear", "in place", "sentences in place", "chrF of the rest", "sentences/s"]]
        free: list[str] = []
        for name, given, placed in (("none", {}, False), ("forced", glossary, False), ("placed", glossary, True)):
            with patch.object(TeacherForcing, "can_place", placed):
                started = time.perf_counter()
                found = translator.translate(texts, glossary=given, truncate=True, split_sentences=False)
                seconds = time.perf_counter() - started
            free = free or [one.text for one in found]
            of_each = [replaced(*one, replacements) for one in zip(texts, free, found, strict=True)]
            counts = sum(of_each, Counter[str]())
            known = [one for one in of_each if one["known"]]
            rest = [without_terms(one.text, replacements) for one in found]
            rows.append(
                [
                    name,
                    str(counts["given"]),
                    f"{counts['present'] / max(1, counts['given']):.1%}",
                    f"{counts['placed'] / max(1, counts['known']):.1%}",
                    f"{sum(one['placed'] == one['known'] for one in known) / max(1, len(known)):.1%}",
                    f"{CHRF().corpus_score(rest, [references]).score:.2f}",
                    f"{len(texts) / seconds:.1f}",
                ]
            )
            print(aligned(rows[-1:]), flush=True)
        print(aligned(rows))


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TRANSFORMER)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--replace", type=Path, nargs=2, metavar=("SOURCE", "REFERENCE"), help="replace words")
    parser.add_argument("--glossary", type=Path, default=Path(__file__).with_name("terms_glossary.tsv"))
    parser.add_argument("--peer", action="store_true", help="search as Post and Vilar do, too; for Transformers")
    parser.add_argument("--quick", action="store_true", help="only show that the benchmark runs")
    arguments = parser.parse_args()
    print(setup(arguments.threads))
    if arguments.replace:
        replace_words(arguments)
        return
    rounds, count = (1, 40) if arguments.quick else (arguments.rounds, arguments.sentences)
    texts, references = corpus("test_2016_flickr.en")[:count], corpus("test_2016_flickr.de")[:count]
    counts = Counter(word for line in corpus("train.de") for word in re.findall(r"\w+", line))
    cases = {str(number): rare_words(references, counts, number) for number in range(4)}
    found: dict[str, list[str]] = {}
    seconds: dict[str, list[float]] = {number: [] for number in cases}
    with Translator(arguments.model, precision=arguments.precision, threads=arguments.threads) as translator:
        translator.warm_up()
        for turn, number in turns(cases, rounds):
            found[number], taken = translate(translator, texts, cases[number], arguments.beam_size)
            if turn:
                seconds[number].append(taken)
    rows = [["terms", "given", "appear", "BLEU", "sentences/s", "of none (range)"]]
    for number, terms in cases.items():
        rate = len(texts) / statistics.median(seconds[number])
        quality = _quality(found[number], terms, references)
        rows.append([number, *quality, f"{rate:.1f}", str(ratio(seconds[number], seconds["0"]))])
    print(aligned(rows))
    if arguments.peer:
        peer = Peer(arguments.model)
        rows = [["terms", "given", "appear, by Post and Vilar", "BLEU"]]
        for number, terms in cases.items():
            progress(f"searching as the peer does, at most {number} terms")
            pairs = zip(texts, terms, strict=True)
            theirs = [peer.translate(text, words, arguments.beam_size) for text, words in pairs]
            rows.append([number, *_quality(theirs, terms, references)])
        print(aligned(rows))


def _quality(translations: Sequence[str], terms: Sequence[tuple[str, ...]], references: Sequence[str]) -> list[str]:
    """Format the number of terms, the share that appears, and BLEU."""
    found = given = 0
    for translation, words in zip(translations, terms, strict=True):
        written = Counter(re.findall(r"\w+", translation))
        for word, needed in Counter(words).items():
            given += needed
            found += min(needed, written[word])
    bleu = BLEU().corpus_score(list(translations), [list(references)]).score
    return [f"{given}", f"{found / given if given else 1.0:.1%}", f"{bleu:.2f}"]


if __name__ == "__main__":
    main()
