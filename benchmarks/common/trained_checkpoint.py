"""The repository's model as a checkpoint in Hugging Face's layout, for ``generate``.

No family there has its sinusoidal positions. Blenderbot's layers are the same, and its positions are weights.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration, PreTrainedTokenizerFast

from jumok_export.models.attention import MultiHeadAttention
from jumok_export.models.layers import DecoderLayer, EncoderLayer
from jumok_export.models.transformer import Transformer
from jumok_serve.manifest.manifest import SpecialTokens

# Their constructors are untyped.
_BLENDERBOT: Any = BlenderbotForConditionalGeneration
_TOKENIZER: Any = PreTrainedTokenizerFast


def save_checkpoint(model: Transformer, tokens: list[str], special: SpecialTokens, folder: Path) -> None:
    """Save a model in a new folder, with a tokenizer for its tokens only.

    Args:
        model: pre-norm model with ReLU, one vocabulary, a tied output, and equal heads in encoder and decoder.
        tokens: vocabulary.
        special: tokens with a role.
        folder: new folder.
    """
    sizes = model.sizes
    end, *_ = special.eos
    checkpoint = _BLENDERBOT(
        BlenderbotConfig(
            vocab_size=len(tokens),
            d_model=sizes.width,
            encoder_layers=sizes.encoder_layers,
            decoder_layers=sizes.decoder_layers,
            encoder_ffn_dim=sizes.feed_forward,
            decoder_ffn_dim=sizes.feed_forward,
            encoder_attention_heads=sizes.heads,
            decoder_attention_heads=sizes.heads,
            max_position_embeddings=sizes.max_positions,
            activation_function=sizes.activation,
            scale_embedding=sizes.scale_embeddings,
            pad_token_id=special.pad,
            bos_token_id=special.start,
            eos_token_id=end,
            decoder_start_token_id=special.start,
            forced_eos_token_id=None,
            encoder_no_repeat_ngram_size=0,
        )
    )
    # What is tied has other names too, and there is a bias, which stays 0.
    unknown = checkpoint.load_state_dict(dict(_weights(model)), strict=False).unexpected_keys
    assert not unknown, unknown
    checkpoint.generation_config.suppress_tokens = [*special.suppress]
    checkpoint.save_pretrained(folder)
    known = {token: index for index, token in enumerate(tokens)}
    _TOKENIZER(
        tokenizer_object=Tokenizer(
            WordLevel(known, unk_token=tokens[special.pad if special.unk is None else special.unk])
        ),
        pad_token=tokens[special.pad],
        eos_token=tokens[end],
    ).save_pretrained(folder)


def _weights(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights by their names there."""
    yield "model.shared.weight", model.target_embedding.weight
    encoder = cast("Iterable[EncoderLayer]", model.encoder)
    decoder = cast("Iterable[DecoderLayer]", model.decoder)
    for number, encodes in enumerate(encoder):
        name = f"model.encoder.layers.{number}"
        yield from _attention(f"{name}.self_attn", encodes.self_attention, encodes.self_attention_residual.norm)
        yield from _feed_forward(name, encodes)
    for number, decodes in enumerate(decoder):
        name = f"model.decoder.layers.{number}"
        yield from _attention(f"{name}.self_attn", decodes.self_attention, decodes.self_attention_residual.norm)
        yield from _attention(f"{name}.encoder_attn", decodes.cross_attention, decodes.cross_attention_residual.norm)
        yield from _feed_forward(name, decodes)
    for side, positions, norm in (
        ("encoder", model.source_positions, model.encoder_norm),
        ("decoder", model.target_positions, model.decoder_norm),
    ):
        yield f"model.{side}.embed_positions.weight", positions.table
        yield from _layer(f"model.{side}.layer_norm", norm)


def _attention(name: str, attention: MultiHeadAttention, norm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from _layer(f"{name}.q_proj", attention.query_projection)
    yield from _layer(f"{name}.k_proj", attention.key_projection)
    yield from _layer(f"{name}.v_proj", attention.value_projection)
    yield from _layer(f"{name}.out_proj", attention.output_projection)
    yield from _layer(f"{name}_layer_norm", norm)


def _feed_forward(name: str, layer: EncoderLayer | DecoderLayer) -> Iterator[tuple[str, Tensor]]:
    enter, leave = (part for part in layer.feed_forward.modules() if isinstance(part, nn.Linear))
    yield from _layer(f"{name}.fc1", enter)
    yield from _layer(f"{name}.fc2", leave)
    yield from _layer(f"{name}.final_layer_norm", layer.feed_forward_residual.norm)


def _layer(name: str, layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", cast(Tensor, layer.weight)
    yield f"{name}.bias", cast(Tensor, layer.bias)
