"""Tokenizers in the manifest: files, sizes and settings of each kind."""

from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from jumok_serve.manifest.parts import Part, Positive, RelativePath

Spelling: TypeAlias = Annotated[str, StringConstraints(min_length=1)]


class _Description(Part):
    """A tokenizer's files, by the names of their fields.

    The last of several files has the tokens of translations; without it, both languages have the same tokens.
    """

    file_fields: ClassVar[tuple[str, ...]]
    source_vocab_size: Positive
    target_vocab_size: Positive

    @property
    def files(self) -> tuple[str, ...]:
        """The tokenizer's files."""
        return tuple(file for name in self.file_fields if (file := getattr(self, name)) is not None)

    @property
    def shared(self) -> bool:
        """True if both languages have the same tokens."""
        return len(self.file_fields) == 1 or getattr(self, self.file_fields[-1]) is None

    @property
    def settings(self) -> dict[str, Any]:
        """The fields besides kind and files."""
        return self.model_dump(exclude={"kind", *self.file_fields})


class SentencePieceDescription(_Description):
    """SentencePiece models: one for both languages, or one for each if ``target_model`` is set."""

    file_fields = ("source_model", "target_model")
    kind: Literal["sentencepiece"] = "sentencepiece"
    source_model: RelativePath
    target_model: RelativePath | None = None

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.shared and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"one shared model has one vocabulary size, got {self.source_vocab_size} for the source "
                f"and {self.target_vocab_size} for the target"
            )
        return self


class PieceVocabularyDescription(_Description):
    """SentencePiece models that cut text into pieces, and vocabularies of the pieces' ids.

    Attributes:
        source_model, target_model: SentencePiece models; no target model: the languages share one.
        source_vocabulary, target_vocabulary: JSON objects from piece to id; no target vocabulary: one for both.
        source_vocab_size, target_vocab_size: the model's sizes, which may exceed the vocabularies'.
        unknown: token of unknown pieces.
        special_tokens: tokens that are no text and decode to nothing, in the source's spelling.
        input_tokens: special tokens that a text may spell, such as ``<sep>``; they decode to nothing.
        leading_codes: True if a ``>>code<<`` that begins a text is a token.
        clean_up_spaces: True to apply `jumok_serve.tokenizers.sentencepiece.clean_up_spaces` to decoded text.
    """

    file_fields = ("source_model", "target_model", "source_vocabulary", "target_vocabulary")
    kind: Literal["piece_vocabulary"] = "piece_vocabulary"
    source_model: RelativePath
    target_model: RelativePath | None = None
    source_vocabulary: RelativePath
    target_vocabulary: RelativePath | None = None
    unknown: Spelling
    special_tokens: tuple[Spelling, ...]
    input_tokens: tuple[Spelling, ...] = ()
    leading_codes: bool = False
    clean_up_spaces: bool = False


class TokenizerJsonDescription(_Description):
    """A ``tokenizer.json`` of Hugging Face's `tokenizers`, for both languages.

    Attributes:
        file: the tokenizer.json.
        source_vocab_size, target_vocab_size: the model's sizes, which may exceed the tokenizer's.
        input_tokens: special tokens that a text may spell, such as ``<extra_id_0>``; they decode to nothing.
        clean_up_spaces: True to apply `jumok_serve.tokenizers.sentencepiece.clean_up_spaces` to decoded text.
    """

    file_fields = ("file",)
    kind: Literal["tokenizer_json"] = "tokenizer_json"
    file: RelativePath
    input_tokens: tuple[Spelling, ...] = ()
    clean_up_spaces: bool = False


class WordListDescription(_Description):
    """Lists of characters or words, one per line of a file.

    Attributes:
        unit: part of a text that is a token; words stand between white space.
        target_unit: part of a translation that is a token; None: `unit`.
        source_vocabulary, target_vocabulary: files; no target vocabulary: one for both languages.
        unknown: token of characters or words that are not listed; None: they are left out.
        special_tokens: tokens that are no text and decode to nothing.
    """

    file_fields = ("source_vocabulary", "target_vocabulary")
    kind: Literal["word_list"] = "word_list"
    unit: Literal["character", "word"]
    target_unit: Literal["character", "word"] | None = None
    source_vocabulary: RelativePath
    target_vocabulary: RelativePath | None = None
    unknown: Spelling | None = None
    special_tokens: tuple[Spelling, ...] = ()


class MosesBPEDescription(_Description):
    """Byte-pair codes of Moses words, and vocabularies of the pieces' ids; needs the extra ``moses``.

    Attributes:
        codes: codes file of subword-nmt.
        source_vocabulary, target_vocabulary: JSON objects from piece to id; no target vocabulary: one for both.
        source_vocab_size, target_vocab_size: the model's sizes, which may exceed the vocabularies'.
        unknown: token of unknown pieces.
        special_tokens: tokens that are no text and decode to nothing.
        source_language, target_language: Moses' codes of the languages, such as ``en``.
    """

    file_fields = ("codes", "source_vocabulary", "target_vocabulary")
    kind: Literal["moses_bpe"] = "moses_bpe"
    codes: RelativePath
    source_vocabulary: RelativePath
    target_vocabulary: RelativePath | None = None
    unknown: Spelling
    special_tokens: tuple[Spelling, ...]
    source_language: Spelling
    target_language: Spelling


TokenizerDescription: TypeAlias = Annotated[
    SentencePieceDescription
    | PieceVocabularyDescription
    | TokenizerJsonDescription
    | WordListDescription
    | MosesBPEDescription,
    Field(discriminator="kind"),
]
