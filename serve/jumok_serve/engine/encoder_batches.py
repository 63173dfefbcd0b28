"""Which sentences are encoded together: the split by length that costs least."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from jumok_serve.engine.batch import Sentence

CALL_TOKENS = 24
"""What an encoder call costs beside its tokens, counted in tokens: 12 to 19 were measured of models of width 256 and
512, int8 and fp32, when nothing else ran. Between decoder steps, which fill the caches, it is more: of 16, 24, 32 and
48 this and 32 were the fastest with a model of width 256."""

MAX_CALL_TOKENS = 512
"""Most tokens of a call, padding included: among more a token costs no less, from 1,000 on more, and memory grows."""


def encoder_groups(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """Splits sentences into groups for the encoder, by length, the shortest first.

    A group costs as many tokens as its sentences padded to the longest of them, and `CALL_TOKENS`. In order of length
    the groups of the cheapest split are runs, and the cheapest split of the shortest n is found from those of fewer.
    A group of more than `MAX_CALL_TOKENS` is cut into equal parts, as far as it has several sentences.
    """
    by_length: dict[int, list[Sentence]] = defaultdict(list)
    for sentence in sentences:
        by_length[len(sentence.source_ids)].append(sentence)
    lengths = sorted(by_length)
    cheapest = [0]  # cost of the split of the first n lengths
    starts = [0]  # where its last group begins
    for end, longest in enumerate(lengths, 1):
        rows = 0
        best, best_start = cheapest[end - 1] + CALL_TOKENS + longest * len(by_length[longest]), end - 1
        for start in range(end - 1, -1, -1):
            rows += len(by_length[lengths[start]])
            cost = cheapest[start] + CALL_TOKENS + rows * longest
            if cost < best:
                best, best_start = cost, start
        cheapest.append(best)
        starts.append(best_start)
    bounds = [len(lengths)]
    while bounds[-1]:
        bounds.append(starts[bounds[-1]])
    groups = []
    for start, end in pairwise(reversed(bounds)):
        group = [sentence for length in lengths[start:end] for sentence in by_length[length]]
        parts = min(len(group), -(-len(group) * lengths[end - 1] // MAX_CALL_TOKENS))
        cuts = [len(group) * part // parts for part in range(parts + 1)]
        groups += [group[first:last] for first, last in pairwise(cuts)]
    return groups
