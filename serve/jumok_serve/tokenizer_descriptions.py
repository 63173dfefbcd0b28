"""What the manifest says of a tokenizer, for each kind there is: its files, its sizes, its settings."""

from typing import Literal, Self, TypeAlias

from pydantic import model_validator

from jumok_serve.parts import Part, Positive, RelativePath


class SentencePieceDescription(Part):
    """SentencePiece models: one for both languages, or one for each when ``target_model`` is set."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    source_model: RelativePath
    target_model: RelativePath | None = None
    source_vocab_size: Positive
    target_vocab_size: Positive

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the tokenizer is made of."""
        return (self.source_model,) if self.target_model is None else (self.source_model, self.target_model)

    @property
    def shared(self) -> bool:
        """Whether both languages have the same tokens."""
        return self.target_model is None

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.shared and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"one shared model has one vocabulary size, got {self.source_vocab_size} for the source "
                f"and {self.target_vocab_size} for the target"
            )
        return self


TokenizerDescription: TypeAlias = SentencePieceDescription
