"""A model that was made of a checkpoint, with what an export has to know about it."""

from dataclasses import dataclass

from jumok_export.models.encoder_decoder import EncoderDecoder


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A model that was made of a Hugging Face checkpoint.

    Attributes:
        model: in evaluation mode and float32, on the CPU; to be exported.
        family: transformers' name for the type of model, such as "marian".
        source_vocabulary: number of source tokens.
        target_vocabulary: number of target tokens.
        pad: id of the padding token.
        max_source_length: most source tokens that there are positions for.
        max_target_length: most new tokens that there are positions for; those of a target prefix count.
        unused: names of tensors in the checkpoint that the model has no use for.
    """

    model: EncoderDecoder
    family: str
    source_vocabulary: int
    target_vocabulary: int
    pad: int
    max_source_length: int
    max_target_length: int
    unused: tuple[str, ...]
