"""A Transformer of CTranslate2 in jumok's modules: options, and names of weights."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jumok_export.graphs.storage import WeightsFile
from jumok_export.importers.ctranslate2.options import BIAS, SPECS, Options
from jumok_export.importers.ctranslate2.stored import ModelFile
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.parameters import Weights
from jumok_export.importers.huggingface.settings import MOST_POSITIONS
from jumok_export.importers.huggingface.t5 import usual_limit
from jumok_export.models.layers import DecoderLayer, EncoderLayer, GatedFeedForward
from jumok_export.models.positions import Positions, fairseq_positions
from jumok_export.models.t5 import T5, RMSNorm, T5Sizes
from jumok_export.models.transformer import Transformer, TransformerSizes

_OTHER_SPECS = {
    "TransformerDecoderSpec": "a decoder-only model writes texts and does not translate",
    "TransformerEncoderSpec": "an encoder alone does not translate",
    "WhisperSpec": "Whisper reads speech",
    "Wav2Vec2Spec": "Wav2Vec2 reads speech",
    "Wav2Vec2BertSpec": "Wav2Vec2-BERT reads speech",
}
REVISIONS = range(2, 8)
POSITIONS = 512
"""Positions of a model with sinusoidal ones, which have no bound."""
_PARTS = {
    "self_attention.query_projection": ("self_attention/linear_0", 0, 3),
    "self_attention.key_projection": ("self_attention/linear_0", 1, 3),
    "self_attention.value_projection": ("self_attention/linear_0", 2, 3),
    "self_attention.output_projection": ("self_attention/linear_1", 0, 1),
    "cross_attention.query_projection": ("attention/linear_0", 0, 1),
    "cross_attention.key_projection": ("attention/linear_1", 0, 2),
    "cross_attention.value_projection": ("attention/linear_1", 1, 2),
    "cross_attention.output_projection": ("attention/linear_2", 0, 1),
    "feed_forward.0": ("ffn/linear_0", 0, 1),
    "feed_forward.3": ("ffn/linear_1", 0, 1),
    "feed_forward.gate": ("ffn/linear_0", 0, 1),
    "feed_forward.up": ("ffn/linear_0_noact", 0, 1),
    "feed_forward.down": ("ffn/linear_1", 0, 1),
    "self_attention_residual.norm": ("self_attention/layer_norm", 0, 1),
    "cross_attention_residual.norm": ("attention/layer_norm", 0, 1),
    "feed_forward_residual.norm": ("ffn/layer_norm", 0, 1),
}
"""Our modules of a layer: CTranslate2's layer, which part of its rows, and of how many."""
_WHOLE = {
    "encoder_norm": "encoder/layer_norm",
    "decoder_norm": "decoder/layer_norm",
    "source_norm": "encoder/layernorm_embedding",
    "target_norm": "decoder/layernorm_embedding",
    "target_embedding": "decoder/embeddings",
    "output": "decoder/projection",
}
_LAYER = re.compile(r"(encoder|decoder)\.(\d+)\.(.+)")


def build_model(
    file: ModelFile,
    *,
    epsilon: float | None,
    start: int,
    positions: int = POSITIONS,
    kept: WeightsFile | None = None,
) -> ImportedModel:
    """Build the model of a model.bin.

    Args:
        epsilon: number added to variances in normalisations; None: CTranslate2's default for their kind.
        start: first input of the decoder.
        positions: number of positions, if they are sinusoidal.
        kept: see `Weights`.

    Raises:
        CheckpointError: a model of another kind, an option that is not supported, or unfit weights; lists all problems.
    """
    _check_spec(file)
    options = Options(file)
    sizes = options.transformer() if not options.relative else options.t5()
    if options.problems or sizes is None:
        raise CheckpointError(options.problems)
    rows = file["decoder/embeddings/weight"].shape[0]
    if start >= rows:
        raise CheckpointError([f"the decoder's start token has the id {start}, but the model's ids end at {rows - 1}"])
    from_zero = options.flag("decoder/start_from_zero_embedding")
    tensors = _Tensors(file, options)
    weights = Weights(tensors, kept=kept, mapped=False)
    with torch.device("meta"):
        model = _make(sizes, options, positions)
        _set_parts(model, tensors, 1e-5 if epsilon is None else epsilon, 1e-6 if epsilon is None else epsilon)
    given = {
        name: torch.zeros(parameter.shape)
        for name, parameter in model.named_parameters()
        if name.endswith(".bias") and not _is_norm(model, name) and tensors.stored(name) not in tensors
    }
    weights.fill(model, tensors.stored, given)
    problems = [*weights.problems, *options.unsupported()]
    if problems:
        raise CheckpointError(problems)
    if isinstance(model, Transformer):
        limits = [len(positions.table) for positions in (model.source_positions, model.target_positions)]
        if from_zero:
            # Position 0 has the start token alone: together they become an embedding of zeros.
            model.target_positions.table[0] -= model.target_embedding.weight[start] * model.embedding_scale
    else:
        limits = [usual_limit(model.sizes, POSITIONS)] * 2
    return ImportedModel(
        model=model.eval(),
        family="ctranslate2",
        source_vocabulary=model.source_embedding.num_embeddings,
        target_vocabulary=model.target_embedding.num_embeddings,
        pad=0,
        max_source_length=limits[0],
        max_target_length=limits[1],
        unused=(),
        bounded=isinstance(model, Transformer),
    )


def _check_spec(file: ModelFile) -> None:
    supported = ", ".join(SPECS)
    if file.spec in _OTHER_SPECS:
        raise CheckpointError([f"the model is a {file.spec}: {_OTHER_SPECS[file.spec]}; supported is TransformerSpec"])
    if file.spec not in SPECS:
        raise CheckpointError([f"the model is a {file.spec!r}: supported are {supported}"])
    if file.revision not in REVISIONS:
        raise CheckpointError([f"revision {file.revision} of {file.spec} is not supported: convert the model again"])


@dataclass(frozen=True)
class _Tensors(Mapping[str, Tensor]):
    """Weights by CTranslate2's names; ``name#1/3`` is the second third of a variable's rows."""

    file: ModelFile
    options: Options

    def stored(self, name: str) -> str:
        """Name of one of our model's parameters here."""
        owner, _, attribute = name.rpartition(".")
        match = _LAYER.fullmatch(owner)
        if owner.startswith(("encoder_positions.", "decoder_positions.")):
            return f"{owner.partition('_')[0]}/layer_0/{BIAS}"
        if owner == "source_embedding":
            base, part, parts = self.options.source, 0, 1
        elif match is None:
            base, part, parts = _WHOLE[owner], 0, 1
        else:
            side, layer, module = match.groups()
            place, part, parts = _PARTS[module]
            base = f"{side}/layer_{layer}/{place}"
        if base.rpartition("/")[2] in {"layer_norm", "layernorm_embedding"}:
            attribute = {"weight": "gamma", "bias": "beta"}[attribute]
        return f"{base}/{attribute}" if parts == 1 else f"{base}/{attribute}#{part}/{parts}"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.partition("#")[0] in self.file

    def __getitem__(self, name: str) -> Tensor:
        base, _, share = name.partition("#")
        self.options.used.add(base)
        if not share:
            return self.file.weights(base)
        part, parts = map(int, share.split("/"))
        rows = self.file[base].shape[0] // parts if self.file[base].shape else 0
        if not rows or rows * parts != self.file[base].shape[0]:
            raise CheckpointError([f"{base} of shape {self.file[base].shape} cannot be divided into {parts} parts"])
        return self.file.weights(base, slice(part * rows, (part + 1) * rows))

    def __iter__(self) -> Iterator[str]:
        return iter(self.file)

    def __len__(self) -> int:
        return len(self.file)


def _make(sizes: TransformerSizes | T5Sizes, options: Options, positions: int) -> Transformer | T5:
    if isinstance(sizes, T5Sizes):
        return T5(sizes)
    model = Transformer(
        sizes,
        source_positions=_positions(options, "encoder", sizes.width, positions),
        target_positions=_positions(options, "decoder", sizes.width, positions),
    )
    model.embedding_scale = options.scale(sizes.width)
    if options.problems:
        raise CheckpointError(options.problems)
    if options.gated:
        for layer in (*model.encoder, *model.decoder):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            layer.feed_forward = GatedFeedForward(
                sizes.encoder_layer if isinstance(layer, EncoderLayer) else sizes.decoder_layer
            )
    return model


def _positions(options: Options, side: str, width: int, positions: int) -> Positions:
    name = f"{side}/position_encodings/encodings"
    with torch.device("cpu"):
        if name not in options.file:
            # CTranslate2 counts positions from one.
            return Positions(fairseq_positions(positions + 1, width)[1:].clone())
        options.used.add(name)
        shape = options.file[name].shape
        if len(shape) != 2 or shape[1] != width or not 1 <= shape[0] <= MOST_POSITIONS:
            raise CheckpointError([f"{name} has shape {shape}, expected positions of width {width}"])
        return Positions(options.file.weights(name))


def _set_parts(model: Transformer | T5, tensors: _Tensors, epsilon: float, rms_epsilon: float) -> None:
    """Give a model the norms that are stored, each with or without a bias."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.LayerNorm | RMSNorm | nn.Identity):
            continue
        width, stored = model.sizes.width, tensors.stored(f"{name}.weight")
        norm: nn.Module
        if stored not in tensors and name in _WHOLE:
            norm = nn.Identity()
        elif tensors.stored(f"{name}.bias") in tensors:
            norm = nn.LayerNorm(width, eps=epsilon)
        else:
            norm = RMSNorm(width, rms_epsilon)
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, norm)


def _is_norm(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), nn.LayerNorm | RMSNorm)
