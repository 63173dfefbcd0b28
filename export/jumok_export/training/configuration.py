"""Schema of a training configuration."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from jumok_export.models.cells import CellKind
from jumok_export.models.recurrent import RecurrentSizes
from jumok_export.models.recurrent_attention import AttentionKind
from jumok_serve.evaluation.parallel_text import bleu_tokenizer, check_bleu_tokenizer
from jumok_serve.manifest.manifest import GenerationDefaults, Limits
from jumok_serve.manifest.parts import LanguageTag, Name

Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]

SCORES = {"validation_bleu": "BLEU", "validation_chrf": "chrF"}
"""Scores of a validation: names in metrics, and names for people."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(_Section):
    """`[data]`: parallel text files, one sentence per line, plain or gzip.

    Paths are relative to the data folder.

    Attributes:
        source_language: tag of the source language, such as "en".
        target_language: tag of the target language.
        train_source: training files with sources.
        train_target: training files with translations, in the order of `train_source`.
        validation_source: validation file with sources.
        validation_target: validation file with translations.
        description: description of the corpus, for the manifest.
        max_length: most tokens of a training sentence; longer pairs are left out.
    """

    source_language: LanguageTag
    target_language: LanguageTag
    train_source: tuple[str, ...] = Field(min_length=1)
    train_target: tuple[str, ...] = Field(min_length=1)
    validation_source: str
    validation_target: str
    description: str = ""
    max_length: Positive = 128

    @model_validator(mode="after")
    def _same_number_of_files(self) -> "DataSection":
        if len(self.train_source) != len(self.train_target):
            raise ValueError(
                f"train_source names {len(self.train_source)} files and train_target {len(self.train_target)}"
            )
        return self


class TokenizerSection(_Section):
    """`[tokenizer]`: SentencePiece vocabulary, trained on the training files.

    Attributes:
        kind: "unigram" or "bpe".
        vocabulary_size: number of tokens of each vocabulary.
        shared: True for one vocabulary of both languages; else one each.
        character_coverage: share of characters with a token of their own.
        sampling_alpha: smoothing of subword regularisation (Kudo, 2018): other segmentations each epoch; 0: off.
        symbols: texts that are always one token of their own, such as placeholders.
    """

    kind: Literal["unigram", "bpe"] = "unigram"
    vocabulary_size: Annotated[int, Field(ge=8)] = 8000
    shared: bool = True
    character_coverage: Annotated[float, Field(gt=0, le=1)] = 1.0
    sampling_alpha: Annotated[float, Field(ge=0, le=1)] = 0.0
    symbols: tuple[Annotated[str, Field(pattern=r"^\S+$")], ...] = ()


class TransformerSection(_Section):
    """`[model]` of the default family "transformer"; see `TransformerSizes`.

    Attributes:
        decoder: "attention" attends to the tokens before; "ssru" has a recurrent unit instead, as small models that are
            made for speed: see `SSRUTransformer`.
    """

    family: Literal["transformer"] = "transformer"
    width: Positive = 512
    heads: Positive = 8
    feed_forward: Positive = 2048
    encoder_layers: Positive = 6
    decoder_layers: Positive = 6
    decoder: Literal["attention", "ssru"] = "attention"
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu", "silu"] = "relu"
    share_embeddings: bool = True
    tie_output: bool = True
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0
    activation_dropout: Fraction = 0.0

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "TransformerSection":
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                f"width must be even and a multiple of heads, got width {self.width} and heads {self.heads}"
            )
        return self


class RecurrentSection(_Section):
    """`[model]` of family "recurrent"; see `RecurrentSizes`."""

    family: Literal["recurrent"]
    cell: CellKind = "lstm"
    attention: AttentionKind = "general"
    embedding: Positive = 256
    width: Positive = 512
    encoder_width: Positive | None = None
    layers: Positive = 1
    bidirectional: bool = True
    reverse_source: bool = False
    readout: Literal["direct", "attentional"] = "attentional"
    tie_output: bool = False
    input_feeding: bool = False
    dropout: Fraction = 0.2

    @model_validator(mode="after")
    def _fits(self) -> "RecurrentSection":
        RecurrentSizes(source_vocabulary=1, target_vocabulary=1, **self.model_dump(exclude={"family"}))
        return self


def _family(values: Any) -> str:
    """Tag of the branch of `ModelSection` for some values.

    No key can have this name.
    """
    family = values.get("family", "transformer") if isinstance(values, dict) else getattr(values, "family", "")
    return f"({family})"


ModelSection = Annotated[
    Annotated[TransformerSection, Tag("(transformer)")] | Annotated[RecurrentSection, Tag("(recurrent)")],
    Discriminator(
        _family,
        custom_error_type="family",
        custom_error_message="family must be 'transformer' or 'recurrent'",
    ),
]


class FeedingSection(_Section):
    """`[training.feeding]`: decoder inputs of a recurrent model in training.

    Attributes:
        mode: "teacher_forcing" feeds the target's tokens. "scheduled_sampling" (Bengio et al., 2015, section 2.4) feeds
            each of them with a probability, and else the model's most likely token. "two_phases" feeds the target's
            tokens first, and the model's own in the last `free_epochs`.
        decay: the probability after i updates: "constant" is `share`; "linear" is
            max(`least`, `share` - `slope` * i); "inverse_sigmoid" is `pace` / (`pace` + exp(i / `pace`)).
        share: the probability at first.
        slope: linear decrease of the probability at every update.
        least: least probability of the linear decay.
        pace: pace of the inverse sigmoid, which is one half after about `pace` * ln(`pace`) updates.
        free_epochs: number of epochs of the second phase.
    """

    mode: Literal["teacher_forcing", "scheduled_sampling", "two_phases"] = "teacher_forcing"
    decay: Literal["constant", "linear", "inverse_sigmoid"] = "linear"
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    slope: Annotated[float, Field(ge=0)] = 1e-4
    least: Annotated[float, Field(ge=0, le=1)] = 0.0
    pace: Annotated[float, Field(ge=1)] = 1000.0
    free_epochs: Annotated[int, Field(ge=0)] = 0

    def forced_share(self, step: int, epoch: int, max_epochs: int) -> float:
        """Probability of feeding the target's token; updates and epochs count from 0."""
        if self.mode == "teacher_forcing":
            return 1.0
        if self.mode == "two_phases":
            return 1.0 if epoch < max_epochs - self.free_epochs else 0.0
        if self.decay == "constant":
            return self.share
        if self.decay == "linear":
            return max(self.least, self.share - self.slope * step)
        return self.pace / (self.pace + math.exp(min(step / self.pace, 500.0)))


class GuidedAlignmentSection(_Section):
    """`[training.guided_alignment]`: one head of cross-attention that learns to align tokens.

    A head's cross-entropy with alignments of the training pairs is added to the loss, as in "Guided Alignment Training
    for Topic-Aware Neural Machine Translation" (Chen et al., 2016). The penultimate decoder layer aligns best without
    guidance and loses least translation quality by it (Garg et al., 2019, sections 4.1 and 4.2). The last layer decides
    on the next token, and needs all of its heads.

    Attributes:
        weight: factor of the head's cross-entropy in the loss.
        layer: decoder layer of the head, from 0; default: the one before the last.
        head: head of the layer, from 0.
    """

    weight: Annotated[float, Field(gt=0)] = 0.1
    layer: Annotated[int, Field(ge=0)] | None = None
    head: Annotated[int, Field(ge=0)] = 0


class TrainingSection(_Section):
    """`[training]`: options of training.

    Attributes:
        max_epochs: passes over the corpus.
        batch_tokens: most pairs * tokens of the longest sentence, padding included, in one batch of one device.
        accumulate_batches: batches of one update, whose gradients are summed.
        learning_rate: highest learning rate, reached after `warmup_steps` updates.
        warmup_steps: updates of the learning rate's rise from 0.
        schedule: learning rate after that: "inverse_sqrt" (Vaswani et al., 2017, equation 3) or "cosine" down to 0 at
            the last epoch.
        label_smoothing: weight of the uniform distribution in the target (Szegedy et al., 2016).
        weight_decay: weight decay of AdamW.
        adam_betas: betas of AdamW.
        gradient_clip: largest norm of the gradient.
        ema_decay: decay of the weights' moving average, which is validated and kept; 0: the weights themselves.
        precision: "bf16-mixed" or "16-mixed" for mixed precision, "32-true" without.
        accelerator: accelerator of Lightning: "auto", "cpu" or "gpu".
        devices: number of devices, or "auto" for all.
        validate_every_epochs: epochs between validations.
        bleu_tokenizer: sacreBLEU's tokenizer of the validation's BLEU, which chooses the best checkpoint; default: by
            the target language, and chrF instead of BLEU if there is none.
        seed: seed of initial weights, batches and sampling.
        feeding: decoder inputs of a recurrent model.
        guided_alignment: head that learns to align tokens; default: none.
    """

    max_epochs: Positive = 20
    batch_tokens: Positive = 4096
    accumulate_batches: Positive = 1
    learning_rate: Annotated[float, Field(gt=0)] = 7e-4
    warmup_steps: Annotated[int, Field(ge=0)] = 4000
    schedule: Literal["inverse_sqrt", "cosine"] = "inverse_sqrt"
    label_smoothing: Fraction = 0.1
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    adam_betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    ema_decay: Fraction = 0.0
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Positive | Literal["auto"] = "auto"
    validate_every_epochs: Positive = 1
    bleu_tokenizer: Literal["13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh"] | None = None
    seed: int = 1
    feeding: FeedingSection = FeedingSection()
    guided_alignment: GuidedAlignmentSection | None = None

    @model_validator(mode="after")
    def _tokenizer_is_installed(self) -> "TrainingSection":
        if self.bleu_tokenizer is not None:
            check_bleu_tokenizer(self.bleu_tokenizer)
        return self


class BundleSection(_Section):
    """`[bundle]`: name, limits and decoding defaults of the exported bundle."""

    name: Name
    version: Name = "1"
    limits: Limits = Limits(max_source_length=256, max_target_length=256)
    generation: GenerationDefaults = GenerationDefaults(max_length=128)

    @model_validator(mode="after")
    def _lengths_within_limits(self) -> "BundleSection":
        longest, limit = self.generation.max_length, self.limits.max_target_length
        if longest > limit:
            raise ValueError(f"generation.max_length {longest} is over limits.max_target_length {limit}")
        return self


class Configuration(_Section):
    """A whole training configuration."""

    data: DataSection
    tokenizer: TokenizerSection = TokenizerSection()
    model: ModelSection = TransformerSection()
    training: TrainingSection = TrainingSection()
    bundle: BundleSection

    @property
    def bleu_tokenizer(self) -> str | None:
        """sacreBLEU's tokenizer of the validation's BLEU; None if chrF takes its place."""
        return self.training.bleu_tokenizer or bleu_tokenizer(self.data.target_language)

    @property
    def validation_score(self) -> str:
        """Name in metrics of the score that chooses the best checkpoint; a key of `SCORES`."""
        return "validation_chrf" if self.bleu_tokenizer is None else "validation_bleu"

    @property
    def guided_head(self) -> tuple[int, int] | None:
        """Decoder layer and head that learn to align tokens, from 0; None without guided alignment."""
        guided = self.training.guided_alignment
        if guided is None or not isinstance(self.model, TransformerSection):
            return None
        return max(0, self.model.decoder_layers - 2) if guided.layer is None else guided.layer, guided.head

    @model_validator(mode="after")
    def _guided_head_exists(self) -> "Configuration":
        if self.training.guided_alignment is None:
            return self
        if not isinstance(self.model, TransformerSection):
            raise ValueError(
                "training.guided_alignment is for models of family 'transformer': a recurrent model has one head of "
                "attention, which its decoder needs; leave the section out"
            )
        head, sizes = self.guided_head, (self.model.decoder_layers, self.model.heads)
        for name, index, size in zip(("layer", "head"), head or (), sizes, strict=True):
            if index >= size:
                raise ValueError(
                    f"training.guided_alignment.{name} must be less than {size}, the number of "
                    f"{'decoder layers' if name == 'layer' else 'heads'}, got {index}"
                )
        return self

    @model_validator(mode="after")
    def _shared_vocabulary(self) -> "Configuration":
        if isinstance(self.model, TransformerSection) and self.model.share_embeddings and not self.tokenizer.shared:
            raise ValueError("model.share_embeddings = true needs tokenizer.shared = true")
        return self

    @model_validator(mode="after")
    def _feeding_of_recurrent_models(self) -> "Configuration":
        feeding = self.training.feeding
        if isinstance(self.model, TransformerSection) and feeding.mode != "teacher_forcing":
            raise ValueError(
                f"training.feeding.mode = {feeding.mode!r} is for models of family 'recurrent': a Transformer is "
                "trained on all positions at once"
            )
        if feeding.mode == "two_phases" and not 0 < feeding.free_epochs < self.training.max_epochs:
            raise ValueError(
                "training.feeding.free_epochs must be at least 1 and less than max_epochs with mode 'two_phases', got "
                f"{feeding.free_epochs} of {self.training.max_epochs}"
            )
        return self


def configuration_from_values(values: Mapping[str, Any]) -> Configuration:
    """Make a configuration from the plain values of TOML or a checkpoint.

    Raises:
        pydantic.ValidationError: invalid values.
    """
    # Strict validation takes an array for a tuple only from JSON.
    return Configuration.model_validate_json(json.dumps(values, default=str))
