"""A Marian Transformer in jumok's modules: options, names of parameters, and activation scales."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.parameters import Weights
from jumok_export.importers.huggingface.settings import MOST_LAYERS
from jumok_export.importers.marian.settings import MarianSettings
from jumok_export.importers.marian.stored import OUTPUT_ALPHAS, MarianFile, Quantized
from jumok_export.models.positions import Positions, fairseq_positions
from jumok_export.models.ssru import SSRUTransformer
from jumok_export.models.transformer import Transformer, TransformerParts, TransformerSizes

POSITIONS = 512
"""Positions of a model with sinusoidal ones, which have no bound of their own."""
_EPSILON = 1e-6
"""Marian's constant in layer norms."""
_REFUSED = {
    "transformer-no-projection": "attention without output projection is not supported",
    "transformer-pool": "pooling in place of attention is not supported",
    "layer-normalization": "layer norms inside recurrent units are not supported",
    "right-left": "models that write from right to left are not supported",
    "ulr": "universal language representations are not supported",
}
_PARTS = {"self_attention": "self", "cross_attention": "context", "ssru": "rnn", "feed_forward": "ffn"}
_ATTENTION = {"query_projection": "q", "key_projection": "k", "value_projection": "v", "output_projection": "o"}
_NORMS = {"self": "self_Wo", "context": "context_Wo", "ffn": "ffn_ffn", "rnn": "rnn_ffn"}
"""Beginnings of the names of a sub-layer's norm; see `_norm_name` for the one exception."""
_LAYER = re.compile(r"(encoder|decoder)\.(\d+)\.(\w+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True, kw_only=True)
class MarianModel:
    """A model of Marian's, in evaluation mode.

    Attributes:
        activation_scales: scales of the activations before matrices, by the matrices' names in `model`.
        weight_multipliers: multipliers of those that are stored in 8 bits.
        alignment: layer of the decoder whose first head was trained to align, from 0; None: no layer.
        positions: most tokens of a source or target.
        unused: names of parameters that the model does not use.
    """

    model: Transformer | SSRUTransformer
    activation_scales: Mapping[str, float]
    weight_multipliers: Mapping[str, float]
    alignment: int | None
    positions: int
    unused: tuple[str, ...]

    @property
    def sizes(self) -> TransformerSizes:
        """Sizes and options of the model."""
        return self.model.sizes


def build_model(file: MarianFile, settings: MarianSettings, start: int) -> MarianModel:
    """Build a model of Marian's parameters and options.

    Args:
        start: token that stands for the start of a target, for which Marian has an embedding of zeros.

    Raises:
        CheckpointError: an architecture that is not supported, or missing or unfit parameters; lists all problems.
    """
    tensors = file.tensors()
    names = _Names(tensors, settings)
    sizes = _sizes(tensors, names, settings)
    if settings.problems or sizes is None:
        raise CheckpointError(settings.problems)
    positions = tensors["Wpos"] if names.trained_positions else fairseq_positions(POSITIONS, sizes.width)
    target_positions = positions.clone()
    weights = Weights(tensors)
    given: dict[str, Tensor] = {}
    if "decoder_ff_logit_out_b" in tensors:
        given["output.bias"] = weights.take("decoder_ff_logit_out_b", (sizes.target_vocabulary,))
    kind = SSRUTransformer if names.recurrent else Transformer
    with torch.device("meta"):
        model = kind(sizes, source_positions=Positions(positions), target_positions=Positions(target_positions))
        _set_norms(model, names)
    weights.fill(model, names.stored, given)
    if names.trained_positions:
        weights.take("Wpos", tuple(positions.shape))
    if weights.problems:
        raise CheckpointError(weights.problems)
    with torch.no_grad():  # position 0 has the start token alone: together they become an embedding of zeros
        target_positions[0] -= model.target_embedding.weight[start] * model.embedding_scale
    scales = _activation_scales(file, model, names)
    quantized = {name: item for name in scales if isinstance(item := file.items[names.stored(name)], Quantized)}
    return MarianModel(
        model=model.eval(),
        activation_scales=scales,
        weight_multipliers={name: item.multiplier for name, item in quantized.items()},
        alignment=_alignment(settings, sizes.decoder_layers),
        positions=len(positions),
        unused=weights.unused,
    )


class _Names:
    """Names of a model's parameters in Marian's file, which depend on its options."""

    def __init__(self, tensors: Mapping[str, Tensor], settings: MarianSettings) -> None:
        self.trained_positions = "Wpos" in tensors
        self.recurrent = (
            settings.require(
                "transformer-decoder-autoreg", "self-attention", ("self-attention", "rnn"), "it is not supported"
            )
            == "rnn"
        )
        before = settings.operations("transformer-preprocess", "")
        after = settings.operations("transformer-postprocess", "dan")
        self.pre = before == "n"
        self.top = settings.operations("transformer-postprocess-top", "")
        self.first = settings.operations("transformer-postprocess-emb", "d")
        if (before, after) not in {("", "an"), ("n", "a")} or self.top not in {"", "n"} or self.first not in {"", "n"}:
            settings.problems.append(
                "the options transformer-preprocess, transformer-postprocess, transformer-postprocess-emb and "
                f"transformer-postprocess-top are {before!r}, {after!r}, {self.first!r} and {self.top!r} without "
                "dropout: only sums with a norm before or after each layer are supported"
            )
        self._tied_layers = settings.integers("transformer-tied-layers")
        self.source = "encoder_Wemb" if "encoder_Wemb" in tensors else "Wemb"
        self.target = "decoder_Wemb" if "decoder_Wemb" in tensors else "Wemb"
        own = ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W")
        self.output = next((name for name in own if name in tensors), self.target)

    def stored(self, name: str) -> str:
        """Marian's name of one of our model's parameters."""
        whole = {
            "source_embedding.weight": self.source,
            "target_embedding.weight": self.target,
            "output.weight": self.output,
            "encoder_norm": "encoder_top",
            "decoder_norm": "decoder_top",
            "source_norm": "encoder_emb",
            "target_norm": "decoder_emb",
        }
        owner, _, attribute = name.rpartition(".")
        if name in whole:
            return whole[name]
        if owner in whole:
            pre = "_pre" if owner in {"source_norm", "target_norm"} else ""
            return f"{whole[owner]}_ln_{_norm_part(attribute)}{pre}"
        match = _LAYER.fullmatch(name)
        assert match is not None, name
        side, index, part, rest, attribute = match.groups()
        layer = f"{side}_l{self._layer(side, int(index))}"
        theirs = _PARTS[part.removesuffix("_residual")]
        if part.endswith("_residual"):
            before = "rnn" if theirs == "rnn" and self.pre else _NORMS[theirs]
            return f"{layer}_{before}_ln_{_norm_part(attribute)}{'_pre' if self.pre else ''}"
        letter = "W" if attribute == "weight" else "b"
        if theirs == "ffn":
            return f"{layer}_ffn_{letter}{'1' if rest == '0' else '2'}"
        if theirs == "rnn":
            return f"{layer}_rnn_{letter}{'' if rest == 'input_projection' else 'f'}"
        return f"{layer}_{theirs}_{letter}{_ATTENTION[rest]}"

    def _layer(self, side: str, index: int) -> int:
        if side == "decoder" and index < len(self._tied_layers):
            return self._tied_layers[index]
        return index + 1

    def check_layers(self, layers: int, settings: MarianSettings) -> None:
        """Note a problem if the tied layers are not those of the decoder."""
        tied = self._tied_layers
        if tied and (len(tied) != layers or not all(1 <= number <= layers for number in tied)):
            settings.problems.append(f"option transformer-tied-layers is {list(tied)}, the decoder has {layers} layers")


def _sizes(tensors: Mapping[str, Tensor], names: _Names, settings: MarianSettings) -> TransformerSizes | None:
    """Sizes of a model, or None if its options make them unknown; problems are noted in the settings."""
    kind = settings.text("type", "transformer")
    if kind != "transformer":
        settings.problems.append(f"the model is of type {kind!r}: only 'transformer' is supported")
    for option, reason in _REFUSED.items():
        if settings.flag(option):
            settings.problems.append(f"option {option} is set: {reason}")
    if settings.integer("transformer-ffn-depth", 2, most=100) != 2:
        settings.problems.append("option transformer-ffn-depth is not 2: only two layers in a feed-forward layer are")
    if names.recurrent:
        settings.require("dec-cell", "gru", ("ssru",), "only the cell ssru is supported in a Transformer's decoder")
    layers = [settings.integer(f"{side}-depth", 1, most=MOST_LAYERS) for side in ("enc", "dec")]
    names.check_layers(layers[1], settings)
    heads = settings.integer("transformer-heads", 8, most=2**16)
    activation = settings.activation()
    needed = [
        names.source,
        names.target,
        names.output,
        "encoder_l1_ffn_W1",
        f"decoder_l{names._layer('decoder', 0)}_ffn_W1",
    ]
    settings.problems += [f"{name} is missing" for name in dict.fromkeys(needed) if name not in tensors]
    if settings.problems:
        return None
    settings.problems += [f"{name} is no matrix" for name in dict.fromkeys(needed) if tensors[name].ndim != 2]
    if settings.problems:
        return None
    source, target, _, up, decoder_up = (tensors[name] for name in needed)
    width = source.shape[1]
    if width % heads or width % 2 or width < 4:
        settings.problems.append(f"a width of {width} must be even and a multiple of the {heads} heads")
        return None
    return TransformerSizes(
        source_vocabulary=len(source),
        target_vocabulary=len(target),
        width=width,
        heads=heads,
        feed_forward=len(up),
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        decoder_feed_forward=len(decoder_up),
        max_positions=len(tensors["Wpos"]) if names.trained_positions else POSITIONS,
        norm="pre" if names.pre else "post",
        activation=activation,
        scale_embeddings=not names.trained_positions,
        norm_embeddings=names.first == "n",
        share_embeddings=names.source == names.target,
        tie_output=names.output == names.target,
        output_bias="decoder_ff_logit_out_b" in tensors,
        dropout=0.0,
    )


def _norm_part(attribute: str) -> Literal["scale", "bias"]:
    return "scale" if attribute == "weight" else "bias"


def _set_norms(model: TransformerParts, names: _Names) -> None:
    """Give a model Marian's norms: the constant, and a last norm by an option of its own."""
    for side in ("encoder_norm", "decoder_norm"):
        setattr(model, side, nn.LayerNorm(model.sizes.width) if names.top == "n" else nn.Identity())
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = _EPSILON


def _activation_scales(file: MarianFile, model: nn.Module, names: _Names) -> dict[str, float]:
    scales: dict[str, float] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.ndim != 2 or name.endswith("embedding.weight"):
            continue
        stored = names.stored(name)
        of_output = (
            (names.output, *OUTPUT_ALPHAS) if stored == names.output and names.output != names.target else OUTPUT_ALPHAS
        )
        candidates = of_output if name == "output.weight" else (stored,)
        multiplier = next((alpha for each in candidates if (alpha := file.alpha(each)) is not None), None)
        if multiplier is not None:
            scales[name] = 1 / multiplier
    return scales


def _alignment(settings: MarianSettings, layers: int) -> int | None:
    if settings.text("guided-alignment", "none") == "none":
        return None
    layer = settings.text("transformer-guided-alignment-layer", "last")
    return layers - 1 if not layer.isdecimal() else min(int(layer[:9]), layers) - 1
