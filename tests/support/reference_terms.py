"""Terms by brute force: reading of complete hypotheses, and dynamic beam allocation over dense arrays."""

from collections.abc import Iterator, Sequence

import numpy as np

from jumok_serve.search import FinishedHypothesis, Terms
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.terms import TermAutomaton, TermState
from tests.support.reference_search import START, StepFunction, log_softmax, process

Sequences = tuple[tuple[int, ...], ...]


def missing_terms(tokens: Sequence[int], terms: Terms) -> int:
    """The least number of terms that a complete hypothesis lacks: occurrences share no token, nor end within a word."""

    def least(index: int, used: frozenset[int]) -> int:
        if index == len(terms.alternatives):
            return 0
        ways = [1 + least(index + 1, used)]
        for sequence in terms.alternatives[index]:
            for first in range(len(tokens) - len(sequence) + 1):
                after = first + len(sequence)
                own = frozenset(range(first, after))
                whole = after == len(tokens) or not terms.continues_word(tokens[after])
                if whole and tuple(tokens[first:after]) == sequence and used.isdisjoint(own):
                    ways.append(least(index + 1, used | own))
        return min(ways)

    return least(0, frozenset())


def all_hypotheses(step: StepFunction, options: SearchOptions) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All sequences that may be written, with their normalised scores."""

    def extend(tokens: tuple[int, ...], total: float) -> Iterator[tuple[float, tuple[int, ...]]]:
        log_probs = process(log_softmax(step((START, *tokens))), (START,), tokens, options)
        for token, log_prob in enumerate(log_probs.tolist()):
            longer = (*tokens, token)
            if log_prob == -np.inf:
                continue
            if token in options.eos_ids or len(longer) == options.max_length:
                yield (total + log_prob) / len(longer) ** options.length_penalty, longer
            else:
                yield from extend(longer, total + log_prob)

    return extend((), 0.0)


def reference_term_search(
    step: StepFunction, options: SearchOptions, terms: Terms, prefix: Sequence[int] = ()
) -> list[tuple[tuple[int, ...], float]]:
    """Return tokens and normalised scores of the hypotheses, best first; some hypothesis must reach all terms."""
    prompt, size, penalty = (START, *prefix), options.beam_size, options.length_penalty
    count = len(terms.alternatives)
    most_ended = max(size - count * (size // (count + 1)), options.num_hypotheses)
    rows: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []

    def state_of(tokens: tuple[int, ...]) -> TermState:
        state = TermAutomaton(terms, options.eos_ids).start
        for token in (*prefix, *tokens):
            state = state.next(token)
        return state

    for length in range(1, options.max_length + 1):
        scored = []
        for row, (total, tokens) in enumerate(rows):
            log_probs = process(log_softmax(step((*prompt, *tokens))), prompt, tokens, options)
            if options.renormalize:
                log_probs = log_softmax(log_probs)
            boosted = state_of(tokens).boosted
            others = [token for token in np.argsort(-log_probs, kind="stable").tolist() if token not in boosted]
            for token in (*boosted, *others[: size + len(options.eos_ids)]):
                if log_probs[token] > -1e9:
                    scored.append((-(total + float(log_probs[token])), row, token, (*tokens, token)))
        scored.sort()
        complete = [
            one
            for one in scored
            if not missing_terms([*prefix, *one[3]][: None if one[2] not in options.eos_ids else -1], terms)
        ]
        for negated, _, token, tokens in complete[:most_ended]:
            if token in options.eos_ids or length == options.max_length:
                ended.append((-negated / length**penalty, tokens))
        ended = sorted(ended, key=lambda one: -one[0])[:most_ended]
        running = [] if length == options.max_length else [one for one in scored if one[2] not in options.eos_ids]
        states = {one: state_of(one[3]) for one in running}
        chosen = []
        in_bank = {bank: [one for one in running if states[one].bank == bank] for bank in range(count + 1)}
        places = dict.fromkeys(in_bank, 0)
        while sum(places.values()) < size and any(places[b] < len(in_bank[b]) for b in in_bank):
            free = [b for b in reversed(in_bank) if places[b] < len(in_bank[b])]
            each = max(1, (size - sum(places.values())) // len(free))
            for bank in free:
                places[bank] += min(each, len(in_bank[bank]) - places[bank], size - sum(places.values()))
        chosen = [one for bank, found in in_bank.items() for one in found[: places[bank]]]
        if running:
            leader = min(running, key=lambda one: (states[one].left, one))
            if leader not in chosen:
                same = [one for one in chosen if states[one].bank == states[leader].bank]
                chosen.remove(same[-1] if same else chosen[0])
                chosen.append(leader)
        rows = [(-negated, tokens) for negated, _, _, tokens in sorted(chosen)]
        hoped = options.max_length if options.early_stopping == "never" and penalty > 0 else length
        full = len(ended) == most_ended
        if not rows or (full and (options.early_stopping is True or rows[0][0] / hoped**penalty <= ended[-1][0])):
            break
    return [(tokens, score) for score, tokens in ended[: options.num_hypotheses]]


def contains_all(hypothesis: FinishedHypothesis, terms: Terms, prefix: Sequence[int] = ()) -> bool:
    """True if a hypothesis contains all terms."""
    return not missing_terms([*prefix, *hypothesis.token_ids], terms)
