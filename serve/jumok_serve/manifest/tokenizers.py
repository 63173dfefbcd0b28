"""What the manifest says of a tokenizer, for each kind there is: its files, its sizes, its settings."""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from jumok_serve.manifest.fields import Part, Positive, RelativePath


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


class PieceVocabularyDescription(Part):
    """SentencePiece models that cut text into pieces, and vocabularies that number the pieces.

    A vocabulary is a JSON object from piece to id; ``target_vocabulary`` is set where the languages have one each. The
    sizes are the model's, and may be larger than the vocabularies. ``special_tokens`` are spelled as in the source
    vocabulary: no text becomes one of them, and they decode to nothing; ``unknown`` is the one for unknown pieces.
    ``leading_codes``: a ``>>code<<`` that begins a text is a token. ``clean_up_spaces``: decoding ends with
    `jumok_serve.tokenizers.detokenize.clean_up_spaces`.
    """

    kind: Literal["piece_vocabulary"] = "piece_vocabulary"
    source_model: RelativePath
    target_model: RelativePath | None = None
    source_vocabulary: RelativePath
    target_vocabulary: RelativePath | None = None
    source_vocab_size: Positive
    target_vocab_size: Positive
    unknown: Annotated[str, StringConstraints(min_length=1)]
    special_tokens: tuple[Annotated[str, StringConstraints(min_length=1)], ...]
    leading_codes: bool = False
    clean_up_spaces: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the tokenizer is made of."""
        files = (self.source_model, self.target_model, self.source_vocabulary, self.target_vocabulary)
        return tuple(file for file in files if file is not None)

    @property
    def shared(self) -> bool:
        """Whether both languages have the same tokens."""
        return self.target_vocabulary is None


class TokenizerJsonDescription(Part):
    """A ``tokenizer.json`` of Hugging Face's `tokenizers`, for both languages.

    The sizes are the model's, and may be larger than the tokenizer's. ``clean_up_spaces``: decoding ends with
    `jumok_serve.tokenizers.detokenize.clean_up_spaces`.
    """

    kind: Literal["tokenizer_json"] = "tokenizer_json"
    file: RelativePath
    source_vocab_size: Positive
    target_vocab_size: Positive
    clean_up_spaces: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the tokenizer is made of."""
        return (self.file,)

    @property
    def shared(self) -> bool:
        """Whether both languages have the same tokens: always."""
        return True


TokenizerDescription: TypeAlias = Annotated[
    SentencePieceDescription | PieceVocabularyDescription | TokenizerJsonDescription, Field(discriminator="kind")
]
