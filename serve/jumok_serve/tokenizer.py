"""From text to token ids and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sentencepiece import SentencePieceProcessor

from jumok_serve.manifest import SentencePieceDescription, TokenizerDescription


class Tokenizer(Protocol):
    """What the server and the exporter ask of a tokenizer; calls may come from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """Number of target token ids, the width of the logits."""

    @property
    def source_vocab_size(self) -> int:
        """Number of source token ids, the same where both languages share a vocabulary."""

    @property
    def source_suffix(self) -> tuple[int, ...]:
        """Ids that end every encoded source; whoever truncates keeps them."""

    def encode(self, text: str) -> list[int]:
        """Source token ids of ``text``, ``source_suffix`` (EOS) included."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target token ids, special tokens left out."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of target token ids, special tokens included."""

    def save(self, folder: Path) -> TokenizerDescription:
        """Write the tokenizer's files into ``folder`` and describe them for the manifest."""


class SentencePieceTokenizer:
    """One SentencePiece model for both languages, or one for each; each as a file's path or its content.

    SentencePiece's encoding and decoding do not change the model and release the GIL, so one object serves any number
    of threads. A character that the model never saw becomes the unknown token, which decodes to ``" ⁇ "``; control
    tokens (padding, start, end) decode to nothing; text that spells ``</s>`` is only text. Whether white space and
    Unicode forms are normalised is a property of the model.

    Raises ``ValueError`` for a file that is no SentencePiece model, and for a source model without an end token.
    """

    def __init__(self, source_model: Path | bytes, target_model: Path | bytes | None = None) -> None:
        self._source = _Model(source_model)
        self._target = self._source if target_model is None else _Model(target_model)
        if self._source.eos < 0:
            raise ValueError(f"{self._source.name} has no end token; train the model with one (eos_id)")
        self._source_suffix = (self._source.eos,)

    @property
    def vocab_size(self) -> int:
        """Number of target token ids, the width of the logits."""
        return self._target.size

    @property
    def source_vocab_size(self) -> int:
        """Number of source token ids."""
        return self._source.size

    @property
    def source_suffix(self) -> tuple[int, ...]:
        """Ids that end every encoded source: EOS."""
        return self._source_suffix

    def encode(self, text: str) -> list[int]:
        """Source token ids of ``text``, EOS included; nothing but EOS for an empty text."""
        return [*self._source.encode(text), *self._source_suffix]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target token ids, control tokens left out; ``IndexError`` for an id beyond the vocabulary."""
        return self._target.decode(self._target.checked(ids))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Pieces of target token ids such as ``▁Haus``; ``IndexError`` for an id beyond the vocabulary."""
        return self._target.pieces(self._target.checked(ids))

    def save(self, folder: Path) -> SentencePieceDescription:
        """Write the models into ``folder`` as ``tokenizer.model``, or ``source.model`` and ``target.model``."""
        shared = self._target is self._source
        source_model = "tokenizer.model" if shared else "source.model"
        target_model = None if shared else "target.model"
        (folder / source_model).write_bytes(self._source.serialized)
        if target_model is not None:
            (folder / target_model).write_bytes(self._target.serialized)
        return SentencePieceDescription(
            source_model=source_model,
            target_model=target_model,
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.vocab_size,
            source_suffix=self.source_suffix,
        )


class _Model:
    """One SentencePiece model, typed: the one place that touches the library, whose own types are loose."""

    def __init__(self, model: Path | bytes) -> None:
        self.name = model.name if isinstance(model, Path) else f"content of {len(model)} bytes"
        self.serialized = model.read_bytes() if isinstance(model, Path) else model
        processor = SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(self.serialized)
            self.size = int(processor.GetPieceSize())
            self.eos = int(processor.eos_id())
        except RuntimeError as exc:
            raise ValueError(f"{self.name} is not a SentencePiece model: {exc}") from exc
        self._processor = processor

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.EncodeAsIds(text)
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._processor.DecodeIds(ids)
        return text

    def pieces(self, ids: list[int]) -> list[str]:
        return [str(self._processor.IdToPiece(token)) for token in ids]

    def checked(self, ids: Sequence[int]) -> list[int]:
        """Plain integers (NumPy's are accepted too), each within the vocabulary."""
        checked = [int(token) for token in ids]
        beyond = [token for token in checked if not 0 <= token < self.size]
        if beyond:
            raise IndexError(f"token {beyond[0]} lies beyond the vocabulary of {self.size}")
        return checked


def load_tokenizer(description: TokenizerDescription, folder: Path) -> Tokenizer:
    """Load the tokenizer of the bundle in ``folder``; ``ValueError`` if it does not load or is not as described."""
    target_model = None if description.target_model is None else folder / description.target_model
    tokenizer = SentencePieceTokenizer(folder / description.source_model, target_model)
    for what, found, described in (
        ("source vocabulary", tokenizer.source_vocab_size, description.source_vocab_size),
        ("target vocabulary", tokenizer.vocab_size, description.target_vocab_size),
        ("source suffix", tokenizer.source_suffix, description.source_suffix),
    ):
        if found != described:
            raise ValueError(f"tokenizer: the {what} is {found}, the manifest says {described}")
    return tokenizer
