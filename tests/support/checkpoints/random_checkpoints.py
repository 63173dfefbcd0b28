"""Tiny Hugging Face models with random weights, of every supported family."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SHARED: Mapping[str, Any] = {
    "vocab_size": 37,
    "d_model": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
}
UNEVEN: Mapping[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 28,
}
T5: Mapping[str, Any] = {
    "vocab_size": 37,
    "d_model": 24,
    "d_kv": 12,
    "d_ff": 20,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
}

CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "marian": ("marian", {"activation_function": "swish", "scale_embedding": True, "pad_token_id": 36}),
    "marian-uneven": ("marian", {**UNEVEN, "activation_function": "relu", "d_model": 12}),
    "marian-odd": ("marian", {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5}),
    "marian-two-vocabularies": (
        "marian",
        {
            **UNEVEN,
            "activation_function": "gelu",
            "d_model": 12,
            "decoder_vocab_size": 29,
            "share_encoder_decoder_embeddings": False,
        },
    ),
    "marian-untied": ("marian", {"tie_word_embeddings": False, "scale_embedding": True}),
    "m2m100": ("m2m_100", {"activation_function": "relu"}),
    "m2m100-uneven": ("m2m_100", {**UNEVEN, "activation_function": "gelu_new", "scale_embedding": False}),
    "m2m100-odd-and-untied": (
        "m2m_100",
        {
            "d_model": 15,
            "encoder_attention_heads": 3,
            "decoder_attention_heads": 5,
            "pad_token_id": 7,
            "tie_word_embeddings": False,
        },
    ),
    "bart": ("bart", {"activation_function": "gelu"}),
    "bart-uneven": ("bart", {**UNEVEN, "activation_function": "quick_gelu", "scale_embedding": True}),
    "bart-untied": ("bart", {"tie_word_embeddings": False, "activation_function": "gelu_fast"}),
    "mbart": ("mbart", {"activation_function": "gelu", "scale_embedding": True}),
    "mbart-uneven": ("mbart", {**UNEVEN, "activation_function": "relu"}),
    "mbart-untied": ("mbart", {"tie_word_embeddings": False, "activation_function": "silu"}),
    "t5": ("t5", {}),
    "t5-uneven": ("t5", {"num_layers": 2, "num_decoder_layers": 1, "num_heads": 3, "d_kv": 5}),
    "t5-gated-and-untied": (
        "t5",
        {
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "num_decoder_layers": 2,
            "num_heads": 3,
            "d_kv": 7,
            "relative_attention_num_buckets": 9,
            "relative_attention_max_distance": 128,
            "layer_norm_epsilon": 1e-3,
        },
    ),
    "pegasus": ("pegasus", {"activation_function": "relu", "scale_embedding": True, "pad_token_id": 0}),
    "pegasus-uneven": ("pegasus", {**UNEVEN, "activation_function": "gelu", "pad_token_id": 0}),
    "mt5": ("mt5", {"num_layers": 2, "num_decoder_layers": 1}),
    "mt5-untied": ("mt5", {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False}),
    "umt5": ("umt5", {"num_layers": 2, "num_decoder_layers": 3, "num_heads": 3, "d_kv": 5}),
    "umt5-not-gated": ("umt5", {"feed_forward_proj": "relu", "tie_word_embeddings": False}),
    "t5-gated-silu": ("t5", {"feed_forward_proj": "gated-silu", "scale_decoder_outputs": False}),
}
"""Type of model and fields of its configuration, by name of the test case."""

MODELS: Mapping[str, tuple[Any, Any]] = {
    "marian": (transformers.MarianConfig, transformers.MarianMTModel),
    "m2m_100": (transformers.M2M100Config, transformers.M2M100ForConditionalGeneration),
    "bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
    "mbart": (transformers.MBartConfig, transformers.MBartForConditionalGeneration),
    "pegasus": (transformers.PegasusConfig, transformers.PegasusForConditionalGeneration),
    "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
    "mt5": (transformers.MT5Config, transformers.MT5ForConditionalGeneration),
    "umt5": (transformers.UMT5Config, transformers.UMT5ForConditionalGeneration),
}
"""Classes of configuration and model by type of model."""


@functools.cache
def random_checkpoint(name: str) -> Any:
    """Make a model of transformers; all weights, biases and norms are random."""
    kind, special = CONFIGURATIONS[name]
    config_class, model_class = MODELS[kind]
    config = config_class(**{**(T5 if kind.endswith("t5") else SHARED), **special})
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(list(CONFIGURATIONS).index(name))
        model = model_class(config).eval().requires_grad_(False)
        for own, tensor in (*model.named_parameters(), *model.named_buffers()):
            # Sinusoidal positions are what they are computed to be.
            if not (kind in ("marian", "m2m_100", "pegasus") and "embed_positions" in own):
                nn.init.normal_(tensor, std=0.3)
        # As in a checkpoint of version 1.1 of T5: the only sign that they are not tied.
        if name in ("t5-gated-and-untied", "mt5-untied"):
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight), requires_grad=False)
    return model


def config_of(model: Any) -> dict[str, Any]:
    """Content of config.json as `save_pretrained` writes it."""
    return {**model.config.to_diff_dict(), "architectures": [type(model).__name__]}


def sentences(model: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Make sources [3, 11], start tokens and targets [3, 9], with lengths and without inner padding."""
    config = model.config
    target_vocabulary = model.get_output_embeddings().weight.shape[0]
    random = torch.Generator().manual_seed(1)
    source_ids = torch.randint(config.vocab_size - 1, (3, 11), generator=random)
    target_ids = torch.randint(target_vocabulary - 1, (3, 9), generator=random)
    source_ids += source_ids >= config.pad_token_id
    target_ids += target_ids >= config.pad_token_id
    source_lengths, target_lengths = torch.tensor([11, 4, 1]), torch.tensor([9, 9, 2])
    source_ids[torch.arange(11) >= source_lengths[:, None]] = config.pad_token_id
    return source_ids, source_lengths, torch.tensor([2, 5, 9]), target_ids, target_lengths


def source_mask(source_ids: Tensor, source_lengths: Tensor) -> Tensor:
    """Attention mask of padded sources for transformers, [B, S]."""
    return (torch.arange(source_ids.shape[1]) < source_lengths[:, None]).long()
