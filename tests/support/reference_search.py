"""Reference search: dense arrays over all K * V continuations, whole histories, one step function.

It follows the semantics alone and shares no code with the package, so it is an oracle. ``drive`` runs a search of the
package on the same step function. ``toy_model`` and ``given_model`` make step functions, with start token ``START``.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import Constraints
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import FinishedHypothesis, Search
from jumok_serve.search.step_arrays import best_continuations, best_of_each_row

Scores = npt.NDArray[np.float64]
StepFunction = Callable[[tuple[int, ...]], Scores]
"""From a prefix, start token included, to the logits of the next token, [V]."""

START = 0
DEAD = -1e9


def reference_search(
    step: StepFunction, options: SearchOptions, start_token: int, prefix: Sequence[int] = ()
) -> list[FinishedHypothesis]:
    """Return the hypotheses, best first."""
    prompt = (start_token, *prefix)
    if options.beam_size == 1:
        return [_greedy(step, options, prompt)]
    return _beam(step, options, prompt)


def log_softmax(logits: Scores) -> Scores:
    """Over the last axis; NaN where nothing is left, as in a graph.

    Rounded to 2^-40, so that sums of them are exact and equal probabilities make equal sums in any order.
    """
    with np.errstate(invalid="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        exact = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return np.asarray(np.round(exact * 2.0**40) / 2.0**40)


def process(scores: Scores, prompt: tuple[int, ...], tokens: tuple[int, ...], options: SearchOptions) -> Scores:
    """Apply the processors, which see the prompt too, to the scores of the next token."""
    history = prompt + tokens
    scores = scores.copy()
    vocab_size = len(scores)

    seen = sorted(set(history))
    scores[seen] = np.where(
        scores[seen] < 0, scores[seen] * options.repetition_penalty, scores[seen] / options.repetition_penalty
    )

    size = options.no_repeat_ngram_size
    if size:
        ngrams = {history[i : i + size] for i in range(len(history) - size + 1)}
        for token in range(vocab_size):
            if (*history, token)[-size:] in ngrams:
                scores[token] = -np.inf

    for word in options.bad_words:
        if len(word) == 1 and word[0] in options.eos_ids:
            continue
        if (*history, word[-1])[-len(word) :] == word:
            scores[word[-1]] = -np.inf

    if len(tokens) < options.min_length:
        scores[list(options.eos_ids)] = -np.inf

    forced: tuple[int, ...] = ()
    if len(history) == 1 and options.forced_first_token is not None:
        forced = (options.forced_first_token,)
    if len(tokens) == options.max_length - 1 and options.forced_last_tokens:
        forced = options.forced_last_tokens
    if forced:
        scores[:] = -np.inf
        scores[list(forced)] = 0.0

    scores[list(options.suppress_tokens)] = -np.inf
    # The first token that is free to choose: the second where the first is forced.
    if len(tokens) == (1 if len(prompt) == 1 and options.forced_first_token is not None else 0):
        scores[list(options.begin_suppress_tokens)] = -np.inf
    return scores


def _greedy(step: StepFunction, options: SearchOptions, prompt: tuple[int, ...]) -> FinishedHypothesis:
    tokens: list[int] = []
    token_scores: list[float] = []
    reason = FinishReason.LENGTH
    while len(tokens) < options.max_length and reason is FinishReason.LENGTH:
        processed = process(step((*prompt, *tokens)), prompt, tuple(tokens), options)
        if np.all(processed == -np.inf):
            break
        tokens.append(int(np.argmax(processed)))
        token_scores.append(float(log_softmax(processed)[tokens[-1]]))
        if tokens[-1] in options.eos_ids:
            reason = FinishReason.EOS
    length = max(len(tokens), 1)
    return FinishedHypothesis(
        token_ids=tuple(tokens),
        token_scores=tuple(token_scores),
        score=sum(token_scores) / length**options.length_penalty,
        finish_reason=reason,
    )


def _beam(step: StepFunction, options: SearchOptions, prompt: tuple[int, ...]) -> list[FinishedHypothesis]:
    beams, penalty = options.beam_size, options.length_penalty
    rows: list[tuple[int, ...]] = [()] * beams
    row_scores = np.array([0.0] + [DEAD] * (beams - 1))  # [K]
    token_scores: dict[tuple[int, ...], tuple[float, ...]] = {(): ()}

    ended: list[tuple[int, ...]] = [()] * beams
    ended_scores = np.full(beams, DEAD)  # [K]
    has_ended = np.zeros(beams, dtype=bool)  # [K]

    for length in itertools.count(1):
        processed = [process(log_softmax(step((*prompt, *row))), prompt, row, options) for row in rows]
        log_probs = np.stack(processed)  # [K, V]
        if options.renormalize:
            log_probs = np.where(np.all(log_probs == -np.inf, axis=1, keepdims=True), -np.inf, log_softmax(log_probs))
        sums = row_scores[:, None] + log_probs
        vocab_size = sums.shape[1]
        kept = max(2, 1 + len(options.eos_ids)) * beams
        order = np.argsort(-sums.reshape(-1), kind="stable")[:kept]  # [N]; equal ones by row, then by token
        scores = sums.reshape(-1)[order]
        alive = scores > DEAD
        if not alive.any():
            if has_ended.any():
                break
            survivors = [(row, score) for row, score in zip(rows, row_scores, strict=True) if score > DEAD]
            return [
                FinishedHypothesis(
                    token_ids=row,
                    token_scores=token_scores[row],
                    score=float(score) / max(length - 1, 1) ** penalty,
                    finish_reason=FinishReason.LENGTH,
                )
                for row, score in survivors[: options.num_hypotheses]
            ]

        continuations = [(*rows[index // vocab_size], int(index % vocab_size)) for index in order]
        for index, continuation in zip(order, continuations, strict=True):
            if sums.reshape(-1)[index] > DEAD:
                last = float(log_probs.reshape(-1)[index])
                token_scores[continuation] = (*token_scores[continuation[:-1]], last)

        ends = np.array([c[-1] in options.eos_ids or length == options.max_length for c in continuations])
        first = np.arange(len(order)) < beams

        # The ended hypotheses compete with those that end now, and K stay.
        ends_now = ends & first & alive
        merged = ended + continuations
        merged_scores = np.concatenate([ended_scores, np.where(ends_now, scores / float(length) ** penalty, -np.inf)])
        merged_has_ended = np.concatenate([has_ended, ends_now])
        best = np.argsort(-merged_scores, kind="stable")[:beams]
        ended, ended_scores, has_ended = [merged[i] for i in best], merged_scores[best], merged_has_ended[best]

        # The best that do not end run on, with dead rows for the places that remain.
        running = np.flatnonzero(~ends & alive)[:beams]
        if not len(running):
            break
        missing = beams - len(running)
        rows = [continuations[i] for i in running] + [continuations[running[0]]] * missing
        row_scores = np.concatenate([scores[running], np.full(missing, DEAD)])

        hoped_length = options.max_length if options.early_stopping == "never" and penalty > 0.0 else length
        improvable = row_scores[0] / float(hoped_length) ** penalty > np.where(has_ended, ended_scores.min(), DEAD)
        if not improvable.any() or (options.early_stopping is True and has_ended.all()):
            break

    return [
        FinishedHypothesis(
            token_ids=ended[i],
            token_scores=token_scores[ended[i]],
            score=float(ended_scores[i]),
            finish_reason=FinishReason.EOS if ended[i][-1] in options.eos_ids else FinishReason.LENGTH,
        )
        for i in range(options.num_hypotheses)
        if has_ended[i]
    ]


def drive(search: Search, step: StepFunction, *, extra_candidates: int = 0) -> list[FinishedHypothesis]:
    """Run a search to its end with the candidates that it needs, and ``extra_candidates`` more."""
    prefixes: list[tuple[int, ...]] = [()]
    while not search.finished:
        assert len(search.tokens) == len(search.parents) == len(search.scores) == search.beam_size
        prefixes = [(*prefixes[parent], token) for token, parent in zip(search.tokens, search.parents, strict=True)]
        assert {len(prefix) for prefix in prefixes} == {search.position + 1}

        best, totals = candidates(search, step, prefixes, search.num_candidates + extra_candidates)
        if search.num_continuations:
            seen = best_continuations(
                best, totals, search.beam_size, search.num_continuations + search.beam_size * extra_candidates
            )
        else:
            seen = best_of_each_row(best, totals, search.beam_size)
        search.advance(*(of_all[0].tolist() for of_all in seen))
    return search.hypotheses()


def candidates(
    search: Search, step: StepFunction, prefixes: Sequence[tuple[int, ...]], number: int
) -> tuple[np.ndarray, Scores]:
    """Return the best tokens of each row and their sums, [K, C]."""
    scores = np.stack([step(prefix) for prefix in prefixes])  # [K, V]
    if search.acts_on_logits:
        scores = log_softmax(_constrained(scores, search.constraints))
    else:
        scores = _constrained(log_softmax(scores), search.constraints)
        if search.renormalizes:
            scores = log_softmax(scores)
    scores = np.array(search.scores)[:, None] + _constrained(scores, search.boosts)
    best = np.argsort(-scores, axis=-1, kind="stable")[:, :number]
    return best, np.take_along_axis(scores, best, axis=-1)


def _constrained(scores: Scores, constraints: Constraints) -> Scores:
    scores = scores.copy()
    for (row, token), factor in zip(*constraints.factors, strict=True):
        value = scores[row, token]
        scores[row, token] = value * float(factor) if value < 0 else value / float(factor)
    for (row, token), added in zip(*constraints.biases, strict=True):
        scores[row, token] += added
    return scores


def toy_model(
    rng: np.random.Generator, vocab_size: int, order: int, *, spread: float = 2.0, positions: int = 16
) -> StepFunction:
    """A random language model that sees its position and the last ``order`` tokens.

    Without the position, sequences made of the same n-grams would tie.
    """
    table = rng.normal(scale=spread, size=(positions, *(vocab_size,) * (order + 1)))

    def step(prefix: tuple[int, ...]) -> Scores:
        context = ((START,) * order + prefix)[-order:]
        return np.asarray(table[(len(prefix), *context)])

    return step


def given_model(probabilities: Mapping[tuple[int, ...], tuple[float, ...]]) -> StepFunction:
    """The model whose next-token probabilities after a prefix are those of its longest suffix in the table."""

    def step(prefix: tuple[int, ...]) -> Scores:
        suffix = next(prefix[i:] for i in range(len(prefix) + 1) if prefix[i:] in probabilities)
        return np.asarray(np.log(probabilities[suffix]))

    return step
