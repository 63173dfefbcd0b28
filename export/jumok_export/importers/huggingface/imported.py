"""A model from a checkpoint, with the facts that an export needs."""

from dataclasses import dataclass

from jumok_export.models.encoder_decoder import EncoderDecoder


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A model from a Hugging Face checkpoint.

    Attributes:
        model: the model, in evaluation mode and float32 on the CPU.
        family: transformers' name for the type of model, such as "marian".
        max_source_length: number of source positions, or a default limit without such a bound.
        max_target_length: number of target positions, including those of a target prefix; or a default limit.
        bounded: True if the model has no positions beyond these lengths.
        left_out: beginning of all tensors' names in the checkpoint that the model's names lack.
        unused: names of the checkpoint's tensors that the model does not use.
    """

    model: EncoderDecoder
    family: str
    source_vocabulary: int
    target_vocabulary: int
    pad: int
    max_source_length: int
    max_target_length: int
    unused: tuple[str, ...]
    bounded: bool = True
    left_out: str = ""
