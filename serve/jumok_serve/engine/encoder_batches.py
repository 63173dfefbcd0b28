"""Split sentences into encoder batches by length, at the lowest cost."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from jumok_serve.engine.sentence import Sentence

CALL_TOKENS = 24
"""Fixed cost of an encoder call, in tokens: 12 to 19 on an idle machine (width 256 and 512, int8 and fp32). Between
decoder steps, which fill the caches, it is higher: of 16, 24, 32 and 48, 24 and 32 were fastest (width 256)."""

MAX_CALL_TOKENS = 512
"""Most tokens of a call, padding included: beyond it a token costs no less, from 1,000 on more, and memory grows."""


def split_by_length(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """Split sentences into encoder batches at the lowest cost, shortest sentences first.

    A batch costs the tokens of its sentences, padded to the longest, plus `CALL_TOKENS`. In order of length, the
    batches of the cheapest split are runs, so dynamic programming finds it. A batch of more than `MAX_CALL_TOKENS` is
    cut into equal parts, if it has several sentences.
    """
    by_length: dict[int, list[Sentence]] = defaultdict(list)
    for sentence in sentences:
        by_length[len(sentence.source_ids)].append(sentence)
    lengths = sorted(by_length)
    cheapest = [0]  # cost of the split of the first n lengths
    starts = [0]  # start of its last batch
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
    batches = []
    for start, end in pairwise(reversed(bounds)):
        batch = [sentence for length in lengths[start:end] for sentence in by_length[length]]
        parts = min(len(batch), -(-len(batch) * lengths[end - 1] // MAX_CALL_TOKENS))
        cuts = [len(batch) * part // parts for part in range(parts + 1)]
        batches += [batch[first:last] for first, last in pairwise(cuts)]
    return batches
