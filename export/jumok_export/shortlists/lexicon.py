"""Lexicon of translation probabilities, and shortlists from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """Probabilities of target tokens given source tokens.

    Attributes:
        offsets: bounds of the entries of each source token, [source vocabulary + 1].
        probabilities: probability of each entry's target token given the source token.
        frequencies: frequencies of target tokens on any scale, [target vocabulary].
    """

    offsets: NDArray[np.int64]
    targets: NDArray[np.integer]
    probabilities: NDArray[np.float32]
    frequencies: NDArray[np.float64]

    def shortlist(
        self, tokenizer: Tokenizer, *, best: int, frequent: int, always: Sequence[int], never: Sequence[int]
    ) -> Shortlist:
        """Make a shortlist: the likeliest translations of every source token.

        A token in both vocabularies always lists itself, because names and numbers are copied.

        Args:
            best: most translations of a source token.
            frequent: number of the most frequent target tokens, which are in every list.
            always: further tokens of every list.
            never: tokens of no list, unless they are in `always`.
        """
        sources, vocabulary = len(self.offsets) - 1, tokenizer.vocab_size
        barred = np.zeros(vocabulary, np.bool_)
        barred[list(never)] = True
        barred[list(always)] = False
        by_frequency = np.argsort(-self.frequencies, kind="stable")[:frequent]
        common = by_frequency[~barred[by_frequency] & (self.frequencies[by_frequency] > 0)]
        in_all = np.union1d(common, np.array(always, np.int64))
        barred[in_all] = True

        source = np.repeat(np.arange(sources), np.diff(self.offsets))
        order = np.lexsort((self.targets, -self.probabilities, source))
        rank = np.arange(len(order)) - self.offsets[source[order]]
        chosen = order[(rank < best) & (self.probabilities[order] > 0)]
        spelled = {token: target for target, token in reversed(list(enumerate(tokenizer.tokens(range(vocabulary)))))}
        same = [
            (number, spelled.get(token, -1)) for number, token in enumerate(tokenizer.source_tokens(range(sources)))
        ]
        copies = np.array([pair for pair in same if pair[1] >= 0], np.int64).reshape(-1, 2)
        keys = np.concatenate((source[chosen], copies[:, 0])) * vocabulary
        keys += np.concatenate((self.targets[chosen], copies[:, 1]))
        keys = np.unique(keys)
        keys = keys[~barred[keys % vocabulary]]
        offsets = np.searchsorted(keys, np.arange(sources + 1) * vocabulary)
        return Shortlist(offsets, keys % vocabulary, in_all, vocabulary)
