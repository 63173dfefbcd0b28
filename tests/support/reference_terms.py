"""Terms by brute force: reading of complete hypotheses, and dynamic beam allocation over dense arrays."""

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.search.term_search import AFTER_TERM
from jumok_serve.search.terms import TermAutomaton, Terms, TermState
from tests.support.reference_search import START, StepFunction, log_softmax, process


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


def state_after(terms: Terms, tokens: Sequence[int], eos_ids: tuple[int, ...] = ()) -> TermState:
    """The state of a row after all its tokens."""
    return follow(TermAutomaton(terms, eos_ids), tokens)


def follow(automaton: TermAutomaton, tokens: Sequence[int]) -> TermState:
    """The state that an automaton reaches by all tokens of a row."""
    return reduce(automaton.next, tokens, automaton.start)


def all_hypotheses(
    step: StepFunction, options: SearchOptions, terms: Terms
) -> Iterator[tuple[float, tuple[int, ...], float]]:
    """All sequences that may be written, with their ranks before and normalised scores after them."""

    def extend(tokens: tuple[int, ...], total: float, merit: float) -> Iterator[tuple[float, tuple[int, ...], float]]:
        log_probs = process(log_softmax(step((START, *tokens))), (START,), tokens, options)
        for token, log_prob in enumerate(log_probs.tolist()):
            longer = (*tokens, token)
            if log_prob == -np.inf:
                continue
            ends = token in options.eos_ids
            nearer = not ends and state_after(terms, longer).left < state_after(terms, tokens).left
            after = merit if nearer else merit + log_prob
            if ends or len(longer) == options.max_length:
                length = len(longer) ** options.length_penalty
                rank = rank_of(total + log_prob, after, len(longer), options.length_penalty)
                yield rank, longer, (total + log_prob) / length
            else:
                yield from extend(longer, total + log_prob, after)

    return extend((), 0.0, 0.0)


def rank_of(total: float, merit: float, length: int, penalty: float) -> float:
    """Normalised merit plus the score of the terms, which is normalised as in 20 tokens."""
    return float(merit / length**penalty + (total - merit) / 20**penalty)


def reference_term_search(
    step: StepFunction, options: SearchOptions, terms: Terms, prefix: Sequence[int] = ()
) -> list[tuple[tuple[int, ...], float]]:
    """Return tokens and normalised scores of the hypotheses, by rank; some hypothesis must reach all terms."""
    prompt, size, penalty = (START, *prefix), options.beam_size, options.length_penalty
    count = len(terms.alternatives)
    most_ended = max(size - count * (size // (count + 1)), options.num_hypotheses)
    rows: list[tuple[float, tuple[int, ...], float]] = [(0.0, (), 0.0)]
    ended: list[tuple[float, tuple[int, ...], float]] = []

    def state_of(tokens: tuple[int, ...]) -> TermState:
        return state_after(terms, (*prefix, *tokens), options.eos_ids)

    for length in range(1, options.max_length + 1):
        scored = []
        for row, (total, tokens, merit) in enumerate(rows):
            log_probs = process(log_softmax(step((*prompt, *tokens))), prompt, tokens, options)
            if options.renormalize:
                log_probs = log_softmax(log_probs)
            automaton = TermAutomaton(terms, options.eos_ids)
            state = follow(automaton, (*prefix, *tokens))
            boosted = automaton.boosted(state)
            most = size + len(options.eos_ids) + (AFTER_TERM if state.awaits_end else 0)
            others = [token for token in np.argsort(-log_probs, kind="stable").tolist() if token not in boosted]
            for token in (*boosted, *others[:most]):
                added = float(log_probs[token])
                nearer = token not in options.eos_ids and state_of((*tokens, token)).left < state.left
                if added > -1e9:
                    scored.append((-(total + added), row, token, (*tokens, token), merit + (0.0 if nearer else added)))
        scored.sort()
        complete = [
            one
            for one in scored
            if not missing_terms([*prefix, *one[3]][: None if one[2] not in options.eos_ids else -1], terms)
        ]
        ranked = [(rank_of(-one[0], one[4], length, penalty), one) for one in complete]
        for rank, (negated, _, token, tokens, _) in sorted(ranked, key=lambda one: -one[0])[:most_ended]:
            if token in options.eos_ids or length == options.max_length:
                ended.append((rank, tokens, -negated / length**penalty))
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
        rows = [(-negated, tokens, merit) for negated, _, _, tokens, merit in sorted(chosen)]
        hoped = options.max_length if options.early_stopping == "never" and penalty > 0 else length
        full = len(ended) == most_ended
        exact = options.early_stopping == "never"
        rivals = [row for row in rows if exact or not state_of(row[1]).left]
        best = max((rank_of(total, merit, hoped, penalty) for total, _, merit in rivals), default=-np.inf)
        if not rows or (full and (options.early_stopping is True or best <= ended[-1][0])):
            break
    return [(tokens, score) for _, tokens, score in ended[: options.num_hypotheses]]


def contains_all(hypothesis: FinishedHypothesis, terms: Terms, prefix: Sequence[int] = ()) -> bool:
    """True if a hypothesis contains all terms."""
    return not missing_terms([*prefix, *hypothesis.token_ids], terms)
