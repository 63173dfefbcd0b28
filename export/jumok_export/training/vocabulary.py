"""SentencePiece vocabularies, trained on the corpus; with subword regularisation."""

import io
from collections.abc import Iterable, Sequence

import sentencepiece
import torch
from torch import Tensor

PAD, UNKNOWN, START, END = range(4)
"""Ids of special tokens in every trained vocabulary."""


def train_vocabulary(lines: Iterable[str], *, size: int, kind: str, character_coverage: float, seed: int) -> bytes:
    """Train a SentencePiece model.

    Args:
        lines: sentences of one language, or of both languages of a shared vocabulary.
        size: number of tokens, special tokens included.
        kind: "unigram" (Kudo, 2018) or "bpe" (Sennrich et al., 2016).
        character_coverage: share of the corpus's characters with a token of their own.

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
            num_threads=1,  # the merge order, and so the model, must not depend on thread timing
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"SentencePiece could not train a vocabulary of {size} tokens: {error}") from error
    return model.getvalue()


class Vocabulary:
    """A trained SentencePiece model."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def __getstate__(self) -> bytes:
        return self.model

    def __setstate__(self, model: bytes) -> None:
        self.__init__(model)  # type: ignore[misc]

    def encode(self, text: str) -> list[int]:
        """Segment `text` most likely, with the end token."""
        return [*self._processor.encode(text), END]

    def encode_all(self, texts: Sequence[str], sampling_alpha: float, seed: int) -> list[Tensor]:
        """Segment sentences, with the end token.

        Args:
            sampling_alpha: smoothing of random segmentations (Kudo, 2018), smaller is more even; 0: most likely ones.

        Returns:
            Token ids of each sentence, int32 [T].
        """
        sentencepiece.set_random_generator_seed(seed)
        encoded = self._processor.encode(
            list(texts), num_threads=1, enable_sampling=sampling_alpha > 0, alpha=sampling_alpha, nbest_size=-1
        )
        return [torch.tensor([*tokens, END], dtype=torch.int32) for tokens in encoded]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode the tokens before the end token to text."""
        kept = []
        for token in token_ids:
            if token == END:
                break
            if token not in (PAD, START):
                kept.append(token)
        return str(self._processor.decode(kept))
