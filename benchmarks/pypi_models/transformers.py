"""Weights of PyTorch's `nn.Transformer` in this project's Transformer."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from jumok_export.models.positions import Positions
from jumok_export.models.transformer import Transformer, TransformerSizes

ATTENTION = ("query_projection", "key_projection", "value_projection")
NORMS = {
    "encoder": ("self_attention_residual", "feed_forward_residual"),
    "decoder": ("self_attention_residual", "cross_attention_residual", "feed_forward_residual"),
}


def post_norm(
    vocabularies: tuple[int, int], feed_forward: int, tables: tuple[Tensor, Tensor], *, heads: int, layers: int
) -> Transformer:
    """A Transformer as most tutorials have it: post-norm, separate embeddings, a bias of the logits.

    Args:
        vocabularies: source and target tokens.
        tables: position vectors of source and target, [N, width] each.
    """
    sizes = TransformerSizes(
        source_vocabulary=vocabularies[0],
        target_vocabulary=vocabularies[1],
        width=tables[0].shape[1],
        heads=heads,
        feed_forward=feed_forward,
        encoder_layers=layers,
        decoder_layers=layers,
        norm="post",
        share_embeddings=False,
        tie_output=False,
        output_bias=True,
        max_positions=len(tables[0]),
    )
    source, target = map(Positions, tables)
    return Transformer(sizes, source_positions=source, target_positions=target)


def load_pytorch(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of `nn.Transformer` into a post-norm model.

    Args:
        weights: state dict of PyTorch's module, with names such as `encoder.layers.0.self_attn.in_proj_weight`.
    """
    ours: dict[str, Tensor] = {}
    for name, value in weights.items():
        side, _, rest = name.partition(".")
        if rest.startswith("norm."):  # after the whole stack
            ours[f"{side}_{rest}"] = value
            continue
        _, layer, part, *inner, kind = rest.split(".")
        prefix = f"{side}.{layer}."
        if part in {"self_attn", "multihead_attn"}:
            prefix += "self_attention" if part == "self_attn" else "cross_attention"
            if inner:
                ours[f"{prefix}.output_projection.{kind}"] = value
            else:
                for projection, share in zip(ATTENTION, value.chunk(3), strict=True):
                    ours[f"{prefix}.{projection}.{kind.removeprefix('in_proj_')}"] = share
        elif part.startswith("linear"):
            ours[f"{prefix}feed_forward.{0 if part == 'linear1' else 3}.{kind}"] = value
        else:
            ours[f"{prefix}{NORMS[side][int(part.removeprefix('norm')) - 1]}.norm.{kind}"] = value
    for side in ("encoder", "decoder"):
        setattr(model, f"{side}_norm", nn.LayerNorm(model.sizes.width))
    missing, unexpected = model.load_state_dict(ours, strict=False)
    left = [name for name in missing if name.startswith(("encoder", "decoder"))]
    if left or unexpected:
        raise ValueError(f"weights of nn.Transformer do not fit: missing {left}, unexpected {unexpected}")


def load_ends(model: Transformer, source: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Load the embeddings [V, width], and the output projection."""
    with torch.no_grad():
        for parameter, value in (
            (model.source_embedding.weight, source),
            (model.target_embedding.weight, target),
            (model.output.weight, weight),
            (model.output.bias, bias),
        ):
            parameter.copy_(value)
