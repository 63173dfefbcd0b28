"""Options and sizes of a Transformer of CTranslate2, each supported or refused by name."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jumok_export.errors import listed
from jumok_export.importers.ctranslate2.stored import ModelFile
from jumok_export.importers.huggingface.settings import MOST_LAYERS
from jumok_export.models.layers import Activation
from jumok_export.models.t5 import T5Sizes
from jumok_export.models.transformer import TransformerSizes

SPECS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
"""Specifications that can be imported, with the number of heads before revision 3."""
BIAS = "self_attention/relative_attention_bias"
"""Name of the bias of relative positions in a layer."""
_ACTIVATIONS: Mapping[int, Activation] = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu", 4: "quick_gelu"}
_REASONS = (
    ("relative_position_keys", "relative position representations (Shaw et al., 2018)"),
    ("relative_asymmetric_position_keys", "asymmetric relative positions"),
    ("rotary_dim", "rotary embeddings"),
    ("alibi", "attention with linear biases"),
    ("num_heads_kv", "fewer heads for keys and values than for queries"),
    ("multi_query", "fewer heads for keys and values than for queries"),
    ("sliding_window", "attention within a window"),
    ("q_norm", "normalised queries and keys"),
    ("post_attention_layer_norm", "norms after sub-layers"),
    ("shared_layer_norm", "parallel residual connections"),
    ("input_layer_norm", "parallel residual connections"),
    ("embeddings_1", "several features of each source token"),
    ("project_in", "projections of embeddings"),
    ("final_logit_softcapping", "bounded logits"),
    ("scale_outputs", "this scale of outputs"),
    ("weight_zero", "weights quantized by AWQ"),
)
"""Options without a counterpart here, by a part of a variable's name."""
_WITHOUT_EFFECT = re.compile(
    r"((encoder|decoder)/)?(alignment_layer|alignment_heads|embeddings_merge|alibi_use_positive_positions|scale_alibi)"
    r"|unk_token|bos_token|eos_token|with_source_bos|with_source_eos|with_target_bos|user_decoder_start_tokens"
)
"""Variables that do not change what the model computes, or belong to its tokens."""
_NEUTRAL = {"alibi": 0, "multi_query_attention": 0, "multi_query": 0, "layer_scalar": 1, "sliding_window": 0}
"""Values of options that then have no effect, by the last part of the variable's name."""


class Options:
    """Options and sizes of a model; problems and used variables are collected."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.problems: list[str] = []
        self.used: set[str] = set()
        self.relative = f"encoder/layer_0/{BIAS}" in file
        self.gated = "encoder/layer_0/ffn/linear_0_noact/weight" in file
        self.layers = [self._layers(side) for side in ("encoder", "decoder")]
        self.source = next(
            (name for name in ("encoder/embeddings_0", "encoder/embeddings") if f"{name}/weight" in file), ""
        )
        needed = [f"{self.source or 'encoder/embeddings_0'}/weight", "decoder/embeddings/weight"]
        needed += ["decoder/projection/weight"]
        needed += [f"{side}/layer_0/ffn/linear_0/weight" for side in ("encoder", "decoder")]
        self._matrices = needed
        self.problems += [f"{name} is missing" for name in needed if name not in file]
        self.problems += [f"{name} is no matrix" for name in needed if name in file and len(file[name].shape) != 2]

    def _layers(self, side: str) -> int:
        layers = 0
        while layers <= MOST_LAYERS and f"{side}/layer_{layers}/ffn/linear_0/weight" in self.file:
            layers += 1
        return layers

    def number(self, name: str, default: float) -> float:
        """Read an option of encoder or decoder; before revision 5 both had one."""
        found = name if name in self.file else name.partition("/")[2]
        self.used.add(found)
        return self.file.number(found, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Read a boolean."""
        return bool(self.number(name, float(default)))

    def _both(self, name: str, default: float) -> float:
        encoder, decoder = (self.number(f"{side}/{name}", default) for side in ("encoder", "decoder"))
        if encoder != decoder:
            self.problems.append(f"{name} is {encoder:g} in the encoder and {decoder:g} in the decoder: must be equal")
        return encoder

    def scale(self, width: int) -> float:
        """Read the factor of embeddings: a flag for sqrt(width), or the factor."""
        scales = []
        for side, embeddings in (("encoder", self.source), ("decoder", "decoder/embeddings")):
            name = f"{side}/scale_embeddings"
            if name not in self.file:
                name = f"{embeddings}/multiply_by_sqrt_depth"
            self.used.add(name)
            value = self.file.number(name, 1.0)
            is_flag = name not in self.file or self.file[name].dtype == "int8"
            scales.append((width**0.5 if value else 1.0) if is_flag else value)
        if scales[0] != scales[1]:
            self.problems.append(f"scale_embeddings is {scales[0]:g} in the encoder and {scales[1]:g} in the decoder")
        return scales[0]

    def _activation(self) -> Activation:
        value = int(self._both("activation", 0))
        if value not in _ACTIVATIONS:
            self.problems.append(f"activation {value} is not supported: there are {', '.join(_ACTIVATIONS.values())}")
        return _ACTIVATIONS.get(value, "relu")

    def _sizes(self) -> dict[str, Any] | None:
        """Sizes that both kinds of models have; None if they are unknown."""
        if self.problems:
            return None
        source, target, output, encoder_up, decoder_up = (self.file[name].shape for name in self._matrices)
        width = source[1]
        heads = [int(self.number(f"{side}/num_heads", SPECS[self.file.spec])) for side in ("encoder", "decoder")]
        if min(heads) < 1 or any(width % number for number in heads) or width < 4 or width % 2:
            self.problems.append(
                f"a width of {width} must be even and a multiple of the {heads[0]} and {heads[1]} heads"
            )
        if max(self.layers) > MOST_LAYERS:
            self.problems.append(f"it has more than {MOST_LAYERS} layers")
        if target[0] != output[0]:
            self.problems.append(f"decoder/projection has {output[0]} rows, the embeddings have {target[0]}")
        if self.problems:
            return None
        tied = self.file.same("decoder/embeddings/weight", "decoder/projection/weight")
        return {
            "width": width,
            "heads": heads,
            "feed_forward": [encoder_up[0], decoder_up[0]],
            "encoder_layers": self.layers[0],
            "decoder_layers": self.layers[1],
            "activation": self._activation(),
            "share_embeddings": self.file.same(f"{self.source}/weight", "decoder/embeddings/weight"),
            "tie_output": tied,
        }

    def transformer(self) -> TransformerSizes | None:
        """Sizes of a model with absolute positions."""
        sizes = self._sizes()
        if sizes is None:
            return None
        heads, feed_forward = sizes.pop("heads"), sizes.pop("feed_forward")
        for side, number in zip(("encoder", "decoder"), heads, strict=True):
            self._check_query_scales(side, (sizes["width"] // number) ** -0.5)
        return TransformerSizes(
            source_vocabulary=self.file[f"{self.source}/weight"].shape[0],
            target_vocabulary=self.file["decoder/embeddings/weight"].shape[0],
            heads=heads[0],
            decoder_heads=heads[1],
            feed_forward=feed_forward[0],
            decoder_feed_forward=feed_forward[1],
            norm="pre" if self._both("pre_norm", 1) else "post",
            output_bias="decoder/projection/bias" in self.file,
            dropout=0.0,
            **sizes,
        )

    def t5(self) -> T5Sizes | None:
        """Sizes of a model with the relative positions of T5."""
        sizes = self._sizes()
        if sizes is None:
            return None
        (heads, decoder_heads), (feed_forward, decoder_feed_forward) = sizes.pop("heads"), sizes.pop("feed_forward")
        bias = self.file[f"encoder/layer_0/{BIAS}"].shape
        distances = {
            int(self.number(f"{side}/layer_{layer}/self_attention/relative_attention_max_distance", 128))
            for side, layers in zip(("encoder", "decoder"), self.layers, strict=True)
            for layer in range(layers)
        }
        # CTranslate2 computes the bias in the first layer, for all of them.
        self.used |= {name for name in self.file if name.endswith(BIAS)}
        for side in ("encoder", "decoder"):
            self._check_query_scales(side, 1.0)
        vocabulary = self.file["decoder/embeddings/weight"].shape[0]
        if (heads, feed_forward) != (decoder_heads, decoder_feed_forward):
            self.problems.append("heads and feed-forward layers with relative positions must be equal in both halves")
        if self.file[f"{self.source}/weight"].shape[0] != vocabulary:
            self.problems.append("source and target must have one vocabulary with relative positions")
        if len(distances) != 1 or len(bias) != 2 or not 1 <= bias[0] // 4 < bias[0] // 2 < max(distances, default=0):
            self.problems.append(f"{BIAS} of shape {bias} and distances up to {max(distances, default=0)} do not fit")
        if not self._both("pre_norm", 1):
            self.problems.append("pre_norm is 0: norms after sub-layers are not supported with relative positions")
        if self.flag("decoder/start_from_zero_embedding"):
            self.problems.append("start_from_zero_embedding is not supported with relative positions")
        if self.scale(sizes["width"]) != 1.0:
            self.problems.append("scale_embeddings is not supported with relative positions")
        scale = self.file.number("decoder/scale_outputs", 1.0)
        scaled = abs(scale - sizes["width"] ** -0.5) < 1e-6
        if scaled or scale == 1.0:
            self.used.add("decoder/scale_outputs")
        if self.problems:
            return None
        head_width = int(self.number("encoder/layer_0/self_attention/head_dim", sizes["width"] // heads))
        return T5Sizes(
            vocabulary=vocabulary,
            heads=heads,
            head_width=head_width,
            feed_forward=feed_forward,
            buckets=bias[0],
            max_distance=max(distances),
            gated=self.gated,
            scale_output=scaled,
            **sizes,
        )

    def _check_query_scales(self, side: str, expected: float) -> None:
        for layer in range(self.layers[side == "decoder"]):
            for attention in ("self_attention", "attention"):
                name = f"{side}/layer_{layer}/{attention}/queries_scale"
                self.used.add(name)
                default = expected if not self.relative else float("nan")
                if side == "encoder" and attention == "attention":
                    continue
                scale = self.file.number(name, default)
                if not abs(scale - expected) <= 1e-6 * expected:
                    self.problems.append(f"{name} is {scale:g}: only {expected:g} is supported")

    def unsupported(self) -> Iterator[str]:
        """List options and weights that no module has."""
        left, used = [], {self.file.base(name) for name in self.used if name in self.file}
        for name in self.file:
            part = name.rpartition("/")[2]
            if self.file.base(name) in used or _WITHOUT_EFFECT.fullmatch(name) or name.endswith("weight_scale"):
                continue
            if part in _NEUTRAL and self.file.number(name, _NEUTRAL[part]) == _NEUTRAL[part]:
                continue
            left.append(name)
        for words, reason in _REASONS:
            found = [name for name in left if words in name]
            left = [name for name in left if words not in name]
            if found:
                yield f"{reason}: not supported ({found[0]})"
        if left:
            yield f"options or weights that are not supported: {listed(sorted(left))}"
