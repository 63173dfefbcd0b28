"""SentencePiece vocabularies, trained on the corpus; with subword regularisation."""

import io
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from torch import Tensor

PAD, UNKNOWN, START, END = range(4)
"""Ids of special tokens in every trained vocabulary."""


def train_vocabulary(
    lines: Iterable[str], *, size: int, kind: str, character_coverage: float, seed: int, symbols: Sequence[str] = ()
) -> bytes:
    """Train a SentencePiece model.

    Args:
        lines: sentences of one language, or of both languages of a shared vocabulary.
        size: number of tokens, special tokens included.
        kind: "unigram" (Kudo, 2018) or "bpe" (Sennrich et al., 2016).
        character_coverage: share of the corpus's characters with a token of their own.
        symbols: texts that are always one token.

    Returns:
        The model file's content.

    Raises:
        ValueError: a corpus too small for this size.
    """
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(seed)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            character_coverage=character_coverage,
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=START,
            eos_id=END,
            user_defined_symbols=list(symbols),
            num_threads=1,  # the merge order, and so the model, must not depend on thread timing
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"SentencePiece could not train a vocabulary of {size} tokens: {error}") from error
    return model.getvalue()


class Vocabulary:
    """A trained SentencePiece model.

    Args:
        symbols: texts that are always one token; the model was trained with them.
    """

    def __init__(self, model: bytes, symbols: Sequence[str] = ()) -> None:
        self.model = model
        self._symbols = tuple(symbols)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._symbol_ids = np.array([self._processor.piece_to_id(symbol) for symbol in symbols], np.int32)

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def __getstate__(self) -> tuple[bytes, Sequence[str]]:
        return self.model, self._symbols

    def __setstate__(self, state: tuple[bytes, Sequence[str]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @property
    def piece_lengths(self) -> NDArray[np.int64]:
        """Characters of normalised text that each token spells; 0 of special tokens, -1 of the unknown token."""
        pieces = self._processor.id_to_piece(list(range(len(self))))
        lengths = np.array([len(piece) for piece in pieces])
        lengths[[PAD, START, END]] = 0
        lengths[UNKNOWN] = -1
        return lengths

    def encode(self, text: str) -> list[int]:
        """Segment `text` most likely, with the end token."""
        return [*self._processor.encode(text), END]

    def encode_all(self, texts: Sequence[str], sampling_alpha: float, seed: int) -> list[Tensor]:
        """Segment sentences, with the end token.

        A sentence whose random segmentation splits a symbol is segmented most likely.

        Args:
            sampling_alpha: smoothing of random segmentations (Kudo, 2018), smaller is more even; 0: most likely ones.

        Returns:
            Token ids of each sentence, int32 [T].
        """
        sentencepiece.set_random_generator_seed(seed)
        encoded = self._processor.encode(
            list(texts), num_threads=1, enable_sampling=sampling_alpha > 0, alpha=sampling_alpha, nbest_size=-1
        )
        if sampling_alpha > 0 and len(self._symbol_ids):
            likely = self._processor.encode(list(texts), num_threads=1)
            for index in np.flatnonzero(self._count_symbols(encoded) < self._count_symbols(likely)).tolist():
                encoded[index] = likely[index]
        lengths = np.array([len(tokens) for tokens in encoded], np.int64)
        flat = np.fromiter(itertools.chain.from_iterable(encoded), np.int32, int(lengths.sum()))
        ended = torch.from_numpy(np.insert(flat, np.cumsum(lengths), END))
        return list(torch.split(ended, (lengths + 1).tolist()))

    def _count_symbols(self, encoded: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Count the symbols of each sentence."""
        sentences = np.repeat(np.arange(len(encoded)), [len(tokens) for tokens in encoded])
        tokens = np.fromiter(itertools.chain.from_iterable(encoded), np.int32, len(sentences))
        return np.bincount(sentences[np.isin(tokens, self._symbol_ids)], minlength=len(encoded))

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode the tokens before the end token to text."""
        kept = []
        for token in token_ids:
            if token == END:
                break
            if token not in (PAD, START):
                kept.append(token)
        return str(self._processor.decode(kept))
