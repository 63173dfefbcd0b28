"""Terms in the places of the words that they replace, found by alignment."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np

from jumok_proto.results import FinishReason
from jumok_serve.interrupts import Deadline
from jumok_serve.manifest.languages import Direction, primary_language, writes_spaces
from jumok_serve.runtime.graphs import Floats
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import FinishedHypothesis, normalized_score
from jumok_serve.search.terms import Terms, TermSpan, reachable_terms, read_terms
from jumok_serve.tasks.hypothesis_attention import Job, Ranking
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.terms import TermTokenizer
from jumok_serve.tasks.word_alignment import token_places, words
from jumok_serve.tokenizers.input_processor import InputProcessor
from jumok_serve.tokenizers.tokenizer import Tokenizer

LEAST_ATTENTION: Final = 0.05
"""Least attention of a token to a term that it may be replaced by; a term without such a token replaces none."""
KOREAN_LEAST_ATTENTION: Final = 0.04
"""The same in Korean, whose nouns attend to the article of the source too."""
SHARE: Final = 0.7
"""Attention to a term, of the most that a token pays, from which neighbours belong to the same words."""
KOREAN_SHARE: Final = 0.5
"""The same in Korean, which has no articles; on validation data it left fewer parts of words."""
SPACES: Final = "\u2581\u0120 "
"""Characters of tokens that stand for a space."""
ALIGNED: Final = 0.3
"""Least attention to a term of the source of the term that translates it."""
STEM: Final = 4
"""Least characters of a word that tell it from others; its last two may be an ending. Shorter ones may be articles."""

_BATCHIM_PARTICLES: Final = (
    *("을/를", "은/는", "이/가", "과/와", "으로/로", "이나/나", "이란/란", "이라는/라는", "이며/며"),
)
"""Korean particles after a consonant, and after a vowel."""
_OTHER_PARTICLES: Final = (  # as patterns
    *("의", "에", "에서", "에는", "에서는", "에도", "에게", "도", "만", "까지", "부터", "보다", "마다", "처럼"),
    *("입니다", "인", "으로부터", "로부터"),
    # Endings of nouns that are verbs. Short ones end nouns of two syllables too.
    *("하(?:는|고|여|려면|면|거나|기|지|십시오)", "합니다", "되(?:는|어|고|면)", "됩니다", "(?<=..)[할한될된]"),
)
_PAIRS: Final = [tuple(pair.split("/")) for pair in _BATCHIM_PARTICLES]
_PARTICLE: Final = re.compile(
    "(?:들)?(?:"
    + "|".join(sorted((*_OTHER_PARTICLES, *(one for pair in _PAIRS for one in pair)), key=len, reverse=True))
    + "|(?<=들))$"
)

_NO_NOUN: Final = re.compile(
    "또는|및|그리고|이|그|저|각|이러한|그러한|이런|다른|모든|어떤|여러|수|것[은이을]?|때|대한|대해|위한|위해"
    "|따라|통해|다음과?|같은|같이|경우(?:에만)?|있는|없는|[있없]습니다|합니다|됩니다|입니다|하는|하지|않은"
    "|않는|않습니다|사용하여|가능한|반드시|바로|더|가장"
)
"""Korean words that translate no noun."""
_LETTERS: Final = re.compile(r"\w*")


class Claim(NamedTuple):
    """Tokens of a hypothesis that a term takes the place of; none of them: the term stands before the first.

    Attributes:
        term: index of the term.
        first, after: the tokens.
        kept: True if they are the term already.
    """

    term: int
    first: int
    after: int
    kept: bool


class _Placed(NamedTuple):
    """A free hypothesis with all terms.

    Attributes:
        spans: of each term.
        replaced: words that terms replace.
    """

    token_ids: tuple[int, ...]
    spans: tuple[TermSpan | None, ...]
    replaced: list[str]


@dataclass(frozen=True, eq=False)
class TermPlacing:
    """Chooses between two hypotheses: one with forced terms, and the free one with terms in place of aligned words.

    A forced term may stand beside the word that it should replace. The forced hypothesis is taken if its terms are
    aligned to those of the source, it has none of the replaced words, and it scores more.

    Attributes:
        aligner: aligns and scores hypotheses.
        options: options of the search.
    """

    aligner: TeacherForcing
    tokenizer: Tokenizer
    terms: TermTokenizer
    inputs: InputProcessor
    direction: Direction
    options: SearchOptions
    deadline: Deadline

    def chosen(self, found: Sequence[Ranking]) -> list[Ranking]:
        """Replace the forced hypotheses that terms are better placed without.

        Raises:
            DeadlineExceededError, CancelledError: see `TeacherForcing.alignments`.
        """
        free = {job: of_text[0] for job, _ in found if job.free and (of_text := job.free.result().hypotheses)}
        free = {job: one for job, one in free.items() if one.token_ids}
        forced = {job: of_text[0] for job, of_text in found if job in free and of_text and self._has_places(job)}
        placed: dict[Job, _Placed] = {}
        given = [job.given(free[job].token_ids) for job in forced]
        for (job, one), weights in zip(forced.items(), self.aligner.alignments(given, self.deadline), strict=True):
            self.deadline.check("terms were placed")
            made = self._placed(job, one, free[job], weights)
            if len(made.token_ids) <= self.options.max_length:
                placed[job] = made
        scores = self.aligner.all_scores([job.given(made.token_ids) for job, made in placed.items()], self.deadline)
        better: dict[Job, FinishedHypothesis] = {}
        rivals: list[Job] = []
        for (job, made), of_tokens in zip(placed.items(), scores, strict=True):
            one = FinishedHypothesis(
                token_ids=made.token_ids,
                token_scores=tuple(of_tokens),
                score=normalized_score(sum(of_tokens), len(of_tokens), self.options.length_penalty),
                finish_reason=free[job].finish_reason,
                terms=made.spans,
            )
            other = forced[job]
            if _met(one) >= _met(other):
                better[job] = one
                rivals_it = _met(one) == _met(other) and one.score < other.score
                if rivals_it and not self._has_replaced(other, one, made.replaced):
                    rivals.append(job)
        given = [job.given(forced[job].token_ids) for job in rivals]
        for job, weights in zip(rivals, self.aligner.alignments(given, self.deadline), strict=True):
            if self._is_in_place(job, forced[job], weights):
                del better[job]
        return [(job, (better[job],) if job in better else of_text) for job, of_text in found]

    def _placed(self, job: Job, forced: FinishedHypothesis, free: FinishedHypothesis, weights: Floats) -> "_Placed":
        """Return a free hypothesis with all terms."""
        assert job.terms is not None
        terms = reachable_terms(job.terms.tokens, self.options, ())
        ids = list(free.token_ids)
        size = len(ids) - (free.finish_reason is FinishReason.EOS)
        claims = self._claims(terms, ids[:size], self._attention(job, weights[:size]))
        ends = {claim.after for claim in claims}
        token_ids = list[int]()
        spans: list[TermSpan | None] = [None] * len(terms.alternatives)
        replaced, done = list[str](), 0
        for claim in sorted(claims, key=lambda one: (one.first, one.after, one.term)):
            token_ids += ids[done : claim.first]
            done = claim.after
            sequence: Sequence[int] = ids[claim.first : claim.after]
            particle: Sequence[int] = ()
            if not claim.kept:
                text = self.tokenizer.decode(sequence).strip()
                glues = bool(sequence) and claim.first not in ends and self._ends_in_sign(ids[: claim.first])
                glues = glues and self._continues(sequence[0])
                sequence, particle = self._written(terms, forced, claim.term, text, glues=glues)
                replaced.append(text)
            spans[claim.term] = TermSpan(len(token_ids), len(token_ids) + len(sequence))
            token_ids += *sequence, *particle
        return _Placed((*token_ids, *ids[done:]), tuple(spans), replaced)

    def _columns(self, job: Job) -> list[list[bool]]:
        """Return True for the source tokens of each term, [terms][S]."""
        assert job.terms is not None
        places = token_places(self.inputs.spelled_text(job.source, self.direction), job.terms.text)
        return [[first < match.after and after > match.first for first, after in places] for match in job.terms.matches]

    def _has_places(self, job: Job) -> bool:
        """True if the model reads each term of a sentence."""
        return all(map(any, self._columns(job)))

    def _attention(self, job: Job, weights: Floats) -> list[Floats]:
        """Return the attention of each token to each term of the source, [terms][T]."""
        return [weights[:, inside].sum(axis=1) for inside in self._columns(job)]

    def _is_in_place(self, job: Job, one: FinishedHypothesis, weights: Floats) -> bool:
        """True if each term of a hypothesis attends to its term of the source alone, and is no part of another word."""
        inside = {place for span in one.terms if span is not None for place in range(span.first, span.after)}
        letters = self._letters(one.token_ids)
        least = 1 if self._is_korean else STEM + 1
        outside = [place not in inside and count >= least for place, count in enumerate(letters)]
        for span, attention in zip(one.terms, self._attention(job, weights), strict=True):
            if span is None:
                continue
            own = attention[span.first : span.after].max()
            others = [weight for weight, is_other in zip(attention.tolist(), outside, strict=True) if is_other]
            if own < ALIGNED or max(others, default=0.0) >= SHARE * own:
                return False
            if self._is_korean:
                through = self.tokenizer.decode(one.token_ids[: span.after])
                rest = _LETTERS.match(self.tokenizer.decode(one.token_ids), len(through))
                if rest and rest[0] and not _PARTICLE.fullmatch(rest[0]):
                    return False
        return True

    @property
    def _is_korean(self) -> bool:
        return primary_language(self.direction.target) == "ko"

    def _claims(self, terms: Terms, ids: Sequence[int], attention: Sequence[Floats]) -> list[Claim]:
        """Return the tokens that each missing term replaces; they share none.

        Args:
            attention: of the tokens to each term.
        """
        spelled = self.tokenizer.tokens(ids)
        joined = self._joined(ids, spelled)
        text = self.tokenizer.decode(ids)
        nouns = [place for place in words(text) if text[place[0]].isalnum() and not _NO_NOUN.fullmatch(text, *place)]
        within = {place for first, after in nouns for place in range(first, after)}
        signs = [
            bool(one.strip(SPACES)) and first < after and within.isdisjoint(range(first, after))
            for one, (first, after) in zip(spelled, token_places(spelled, text), strict=True)
        ]
        taken = [False] * len(ids)
        claims, missing = list[Claim](), dict[int, Floats]()
        for index, span in enumerate(read_terms(ids, terms)):
            of_span = 0 if span is None else attention[index][span.first : span.after].max()
            if span is not None and of_span >= SHARE * attention[index].max():
                taken[span.first : span.after] = [True] * (span.after - span.first)
                claims.append(Claim(index, span.first, span.after, kept=True))
            elif terms.alternatives[index]:
                missing[index] = attention[index]
        for index, to_term in sorted(missing.items(), key=lambda item: -item[1].max(initial=0.0)):
            least, share = (KOREAN_LEAST_ATTENTION, KOREAN_SHARE) if self._is_korean else (LEAST_ATTENTION, SHARE)
            claim = _claim(index, to_term, joined, taken=taken, signs=signs, least=least, share=share)
            if claim.first == claim.after:  # beside, not inside, what another one replaces
                beside = [other for other in claims if other.first < claim.first < other.after]
                claim = claim._replace(first=beside[0].after, after=beside[0].after) if beside else claim
            taken[claim.first : claim.after] = [True] * (claim.after - claim.first)
            claims.append(claim)
        return claims

    def _continues(self, token: int) -> bool:
        """True if a token continues a word, in a language with spaces."""
        return writes_spaces(self.direction.target) and self.terms.continues_word(token)

    def _joined(self, ids: Sequence[int], spelled: Sequence[str]) -> list[bool]:
        """Return True for tokens within a word, in a language with spaces, [T]."""
        if not writes_spaces(self.direction.target):
            return [False] * len(ids)
        text = self.tokenizer.decode(ids)
        places = token_places(spelled, text)
        return [False] * bool(ids) + [
            before == (0, 0) or (before[1] == place[0] and text[place[0] - 1 : place[0] + 1].isalnum())
            for before, place in pairwise(places)
        ]

    def _letters(self, ids: Sequence[int]) -> list[int]:
        """Return the number of letters and digits of each token's word, [T]."""
        spelled = self.tokenizer.tokens(ids)
        numbers = list(accumulate(not joined for joined in self._joined(ids, spelled)))
        counts = Counter[int]()
        for number, text in zip(numbers, spelled, strict=True):
            counts[number] += sum(map(str.isalnum, text))
        return [counts[number] for number in numbers]

    def _ends_in_sign(self, ids: Sequence[int]) -> bool:
        """True if the next word may follow without a space: after a sign."""
        return bool(ids) and not any(one.isalnum() or one in SPACES for one in self.tokenizer.tokens(ids)[-1][-1:])

    def _written(
        self, terms: Terms, forced: FinishedHypothesis, term: int, replaced: str, *, glues: bool
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Return the tokens of a term, the alternative that the forced hypothesis has, and of a Korean particle.

        Args:
            replaced: the words that it replaces.
            glues: True to write no space before it.
        """
        span = forced.terms[term] if forced.terms else None
        sequence = terms.alternatives[term][0] if span is None else forced.token_ids[span.first : span.after]
        text = self.tokenizer.decode(sequence)
        particle = _PARTICLE.search(replaced, 1) if self._is_korean else None
        if glues:
            sequence = self.terms.glued(text) or sequence
        return sequence, () if particle is None else self.terms.glued(_after(text, particle[0]))

    def _has_replaced(self, one: FinishedHypothesis, placed: FinishedHypothesis, replaced: Sequence[str]) -> bool:
        """True if a hypothesis has a replaced word more often than the one in which it is replaced."""
        texts = [self.tokenizer.decode(hypothesis.token_ids).casefold() for hypothesis in (one, placed)]
        for part in replaced:
            word = max(re.findall(r"\w+", part.casefold()), key=len, default="")
            if self._is_korean:
                word = word[:1] + _PARTICLE.sub("", word[1:])
            elif writes_spaces(self.direction.target):
                word = word[: max(STEM, len(word) - 2)]
            if word:
                of_one, of_placed = (len(re.findall(rf"(?<!\w){re.escape(word)}", text)) for text in texts)
                if of_one > of_placed:
                    return True
        return False


def _claim(
    term: int,
    attention: Floats,
    joined: Sequence[bool],
    *,
    taken: Sequence[bool],
    signs: Sequence[bool],
    least: float,
    share: float,
) -> Claim:
    """Return the words whose tokens attend to a term most.

    Args:
        attention: of each token to the term, [T].
        joined: True for tokens that continue the word before them, [T].
        taken: True for tokens that other terms replace or are, [T].
        signs: True for signs, Korean particles and words that are no nouns, which are replaced only beside words, [T].
        least: see `LEAST_ATTENTION`.
        share: see `SHARE`.
    """
    if not taken:
        return Claim(term, 0, 0, kept=False)
    free = np.where(np.logical_or(taken, signs), 0.0, attention)
    best = int(free.argmax())
    if free[best] < least:
        best = int(attention.argmax())
        while joined[best]:
            best -= 1
        return Claim(term, best, best, kept=False)
    first, after = best, best + 1
    while first and not taken[first - 1] and (joined[first] or free[first - 1] >= share * free[best]):
        first -= 1
    while after < len(taken) and not taken[after] and (joined[after] or free[after] >= share * free[best]):
        after += 1
    return Claim(term, first, after, kept=False)


def _met(hypothesis: FinishedHypothesis) -> int:
    return sum(span is not None for span in hypothesis.terms)


def _after(noun: str, particle: str) -> str:
    """Return a Korean particle as it is written after a noun."""
    plural = particle.startswith("들")
    for after_consonant, after_vowel in _PAIRS:
        if particle.removeprefix("들") in (after_consonant, after_vowel):
            code = ord("들" if plural else noun[-1]) - ord("가")
            final = code % 28 if 0 <= code < 11172 else 0
            consonant = final not in ({0, 8} if after_consonant == "으로" else {0})
            return ("들" if plural else "") + (after_consonant if consonant else after_vowel)
    return particle
