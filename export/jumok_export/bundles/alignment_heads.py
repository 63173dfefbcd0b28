"""Choice of the heads of cross-attention that align tokens best, measured on parallel text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from jumok_export.errors import ExportError
from jumok_export.quantization.calibration import GreedySearch
from jumok_export.shortlists.sources import MOST_PAIRS, MOST_TOKENS
from jumok_export.shortlists.token_alignment import align_tokens
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Limits
from jumok_serve.manifest.parts import AlignmentHeads, AttentionHead
from jumok_serve.tokenizers.tokenizer import Tokenizer

MEASURED_PAIRS = 500
"""Sentence pairs that attention is computed for, evenly spread."""
MOST_HEADS = 8
"""Maximum of single heads that are averaged, besides all heads of a layer."""
BATCH = 16

Heads: TypeAlias = tuple[tuple[int, int], ...]
"""Layers and heads."""


class _Pair(NamedTuple):
    """Token ids of a sentence and of its translation, and the links between them.

    Attributes:
        linked: True for linked tokens, [T, S].
    """

    source: Sequence[int]
    target: Sequence[int]
    linked: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class AlignmentText:
    """Sentences and translations, on which heads are compared with the alignment of `align_tokens`."""

    sources: Sequence[str]
    targets: Sequence[str]

    def choose_heads(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        direction: Direction,
        search: GreedySearch,
        limits: Limits,
        *,
        guided: AlignmentHeads | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> AlignmentHeads:
        """Choose the heads of the least error rate.

        Single heads are compared, the mean of the best ones, of each layer's heads and of all heads. The error rate is
        the share of linked target tokens whose most attended source token is none of theirs.

        Args:
            model: a module with `align`; see `jumok_export.graphs.tracing.TranslationModel`.
            guided: heads that training has chosen, whose error rate is measured then.

        Raises:
            ExportError: the model has no attention, or no pair can be aligned.
        """
        if not hasattr(model, "align"):
            raise ExportError(
                f"{type(model).__name__} has no method `align`, so no heads can be chosen: leave the alignments out"
            )
        pairs = self._linked(tokenizer, direction, limits, progress)
        attention = _Attention(model, direction, search, tokenizer)
        if guided is not None:
            chosen: Heads = tuple((one.layer, one.head) for one in guided.heads)
            (rate,) = attention.error_rates(pairs, [chosen])
        else:
            layers, heads = attention.sizes(pairs[0])
            single: list[Heads] = [((layer, head),) for layer in range(layers) for head in range(heads)]
            by_layer: list[Heads] = [tuple((layer, head) for head in range(heads)) for layer in range(layers)]
            rates = attention.error_rates(pairs, single)
            ranked = sorted(range(len(single)), key=rates.__getitem__)
            best: list[Heads] = [
                tuple(sorted(single[index][0] for index in ranked[:count]))
                for count in range(1, min(MOST_HEADS, len(single)) + 1)
            ]
            candidates = dict.fromkeys([*best, *by_layer, tuple(head for one in by_layer for head in one)])
            measured = dict(zip(candidates, attention.error_rates(pairs, list(candidates)), strict=True))
            chosen = min(measured, key=measured.__getitem__)
            rate = measured[chosen]
        found = AlignmentHeads(
            heads=tuple(AttentionHead(layer=layer, head=head) for layer, head in chosen),
            origin="measured" if guided is None else guided.origin,
            error_rate=rate,
            pairs=len(pairs),
        )
        progress(f"heads that align tokens: {found}")
        return found

    def _linked(
        self, tokenizer: Tokenizer, direction: Direction, limits: Limits, progress: Callable[[str], None]
    ) -> list[_Pair]:
        around = len(_prefix(tokenizer, direction)) + len(direction.source_suffix)
        longest = min(MOST_TOKENS, limits.max_source_length - around), min(MOST_TOKENS, limits.max_target_length - 2)
        step = max(1, -(-len(self.sources) // MOST_PAIRS))
        texts = self.sources[::step], self.targets[::step]
        encoded = zip(tokenizer.encode_all(texts[0]), map(tokenizer.encode_target, texts[1]), strict=True)
        fitting = [
            (np.array(source, np.int32), np.array(target, np.int32))
            for source, target in encoded
            if source and target and len(source) <= longest[0] and len(target) <= longest[1]
        ]
        if not fitting:
            raise ExportError(
                f"none of the {len(self.sources)} sentence pairs for alignments has 1 to {min(longest)} tokens on both "
                "sides: give some thousands of sentences and their translations"
            )
        links = align_tokens(
            fitting,
            source_vocabulary=tokenizer.source_vocab_size,
            target_vocabulary=tokenizer.vocab_size,
            progress=progress,
        )
        pairs = []
        for index in range(0, len(fitting), max(1, len(fitting) // MEASURED_PAIRS)):
            source, target = fitting[index]
            linked = np.zeros((len(target), len(source)), np.bool_)
            of_pair = slice(*np.searchsorted(links.pairs, (index, index + 1)))
            linked[links.targets[of_pair], links.sources[of_pair]] = True
            if linked.any():
                pairs.append(_Pair(source.tolist(), target.tolist(), linked))
        if not pairs:
            raise ExportError("no tokens of the sentence pairs for alignments could be aligned: give more pairs")
        return sorted(pairs, key=lambda pair: (len(pair.source), len(pair.target)))


def _prefix(tokenizer: Tokenizer, direction: Direction) -> list[int]:
    task = tokenizer.encode(direction.task_prefix) if direction.task_prefix else []
    return [*direction.source_prefix, *task]


class _Attention:
    """Cross-attention of a model over given translations."""

    def __init__(self, model: nn.Module, direction: Direction, search: GreedySearch, tokenizer: Tokenizer) -> None:
        self._align: Callable[..., tuple[torch.Tensor, ...]] = getattr(model, "align")  # noqa: B009 - of any module
        self._search = search
        self._prefix, self._suffix = _prefix(tokenizer, direction), list(direction.source_suffix)
        self._first = [] if search.forced_first is None else [search.forced_first]

    def sizes(self, pair: _Pair) -> tuple[int, int]:
        """Numbers of decoder layers and of heads."""
        (weights,) = self._weights([pair])
        return int(weights.shape[0]), int(weights.shape[1])

    def error_rates(self, pairs: Sequence[_Pair], candidates: Sequence[Heads]) -> list[float]:
        """Error rates of the mean attention of heads."""
        wrong, tokens = np.zeros(len(candidates)), 0
        picks = [tuple(np.array(heads).T) for heads in candidates]
        for start in range(0, len(pairs), BATCH):
            batch = pairs[start : start + BATCH]
            for pair, weights in zip(batch, self._weights(batch), strict=True):
                rows = pair.linked.any(axis=1)
                tokens += int(rows.sum())
                for number, (layers, heads) in enumerate(picks):
                    best = weights[layers, heads][:, rows].mean(axis=0).argmax(axis=-1)
                    wrong[number] += np.count_nonzero(~pair.linked[rows, best])
        rates: list[float] = (wrong / tokens).tolist()
        return rates

    def _weights(self, pairs: Sequence[_Pair]) -> Iterator[NDArray[np.float32]]:
        """Yield the weights of each pair, [layers, heads, T, S], without language tokens and end tokens."""
        sources = [[*self._prefix, *pair.source, *self._suffix] for pair in pairs]
        targets = [[*self._first, *pair.target, self._search.eos[0]] for pair in pairs]
        starts = torch.full((len(pairs),), self._search.start)
        with torch.no_grad():
            cross = self._align(*_padded(sources), starts, *_padded(targets))[0]
        first, column = len(self._first), len(self._prefix)
        for pair, weights in zip(pairs, cross.float().numpy(), strict=True):
            yield weights[:, :, first : first + len(pair.target), column : column + len(pair.source)]


def _padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids with their last, as any token can; also returns their lengths."""
    lengths = [len(row) for row in rows]
    padded = [[*row, *[row[-1]] * (max(lengths) - len(row))] for row in rows]
    return torch.tensor(padded), torch.tensor(lengths)
