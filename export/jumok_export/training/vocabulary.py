"""SentencePiece vocabularies: trained on the corpus, sampled from while training (subword regularisation)."""

import io
from collections.abc import Iterable, Sequence

import sentencepiece
import torch
from torch import Tensor

PAD, UNKNOWN, START, END = range(4)
"""Ids of the special tokens in every vocabulary that is trained here."""


def train_vocabulary(lines: Iterable[str], *, size: int, kind: str, character_coverage: float, seed: int) -> bytes:
    """A SentencePiece model trained on `lines`.

    Args:
        lines: sentences of the language, or of both where they share a vocabulary.
        size: number of tokens, special ones included.
        kind: "unigram" (Kudo, 2018) or "bpe" (Sennrich et al., 2016).
        character_coverage: share of the corpus's characters that get a token of their own.
        seed: of the sentence sample that SentencePiece trains on.

    Returns:
        The model file's content.

    Raises:
        ValueError: the corpus is too small for so many tokens.
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
    """A trained SentencePiece model, as training uses it.

    Args:
        model: content of a SentencePiece model file.
    """

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
        """The most likely segmentation of `text`, with the end token."""
        return [*self._processor.encode(text), END]

    def encode_all(self, texts: Sequence[str], sampling_alpha: float, seed: int) -> list[Tensor]:
        """Every text's tokens with the end token, int32 [T].

        Args:
            texts: sentences.
            sampling_alpha: 0: the most likely segmentations; more: random ones (Kudo, 2018), the smaller the more even.
            seed: of the random ones; the same seed gives the same segmentations.
        """
        sentencepiece.set_random_generator_seed(seed)
        encoded = self._processor.encode(
            list(texts), num_threads=1, enable_sampling=sampling_alpha > 0, alpha=sampling_alpha, nbest_size=-1
        )
        return [torch.tensor([*tokens, END], dtype=torch.int32) for tokens in encoded]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of the tokens before the end token."""
        kept = []
        for token in token_ids:
            if token == END:
                break
            if token not in (PAD, START):
                kept.append(token)
        return str(self._processor.decode(kept))
