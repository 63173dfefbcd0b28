"""The checkpoints to compare: three and more small shapes of each family, unlike one another in every way they can be.

Together they have one layer and several, encoders deeper and shallower than their decoders, odd numbers of heads,
every activation and embedding setting that a family honours, tied and untied weights, shared and separate
vocabularies, and in their ``generation_config.json`` every default that decoding knows.
"""

from collections.abc import Callable
from typing import Any

from transformers import BartConfig, M2M100Config, MarianConfig, MBartConfig, PegasusConfig

from tests.parity.checkpoints import Pair, Shape
from tests.parity.t5_shapes import t5
from tests.parity.texts import all_texts, english, german, targets
from tests.parity.tokenizers import (
    save_bart,
    save_m2m100,
    save_marian,
    save_mbart,
    save_mbart50,
    save_nllb,
    save_pegasus,
)

Token = Callable[[str], int]


def _bart_sizes(
    *, width: int, heads: tuple[int, int], layers: tuple[int, int], feed_forward: tuple[int, int], activation: str
) -> dict[str, Any]:
    """Settings that all families but T5 spell alike; of encoder and decoder each."""
    return {
        "d_model": width,
        "encoder_attention_heads": heads[0],
        "decoder_attention_heads": heads[1],
        "encoder_layers": layers[0],
        "decoder_layers": layers[1],
        "encoder_ffn_dim": feed_forward[0],
        "decoder_ffn_dim": feed_forward[1],
        "activation_function": activation,
        "max_position_embeddings": 96,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "init_std": 0.1,
    }


def marian() -> list[Shape]:
    """As published by OPUS-MT: one pair, several target languages, and two vocabularies."""
    special = {"pad_token_id": "<pad>", "decoder_start_token_id": "<pad>", "eos_token_id": "</s>"}
    pair = Pair(source="eng", target="deu")
    return [
        Shape(
            family="Marian",
            name="marian-3-heads",
            pairs=(pair,),
            configuration=lambda: MarianConfig(
                **_bart_sizes(width=36, heads=(3, 3), layers=(1, 1), feed_forward=(64, 64), activation="swish"),
                scale_embedding=True,
            ),
            tokenize=lambda folder, sentences: save_marian(
                folder, english(sentences), german(sentences), separate=False
            ),
            special=special,
            generation=lambda token: {
                "num_beams": 4,
                "bad_words_ids": [[token("<pad>")]],
                "forced_eos_token_id": token("</s>"),
                "renormalize_logits": True,
            },
        ),
        Shape(
            family="Marian",
            name="marian-two-targets",
            pairs=(
                Pair(source="eng", target="deu", task_prefix=">>deu<< "),
                Pair(source="eng", target="fra", task_prefix=">>fra<< "),
            ),
            configuration=lambda: MarianConfig(
                **_bart_sizes(width=32, heads=(4, 4), layers=(2, 1), feed_forward=(48, 96), activation="gelu")
            ),
            tokenize=lambda folder, sentences: save_marian(
                folder, english(sentences), targets(sentences), separate=False, codes=(">>deu<<", ">>fra<<")
            ),
            special=special,
            generation=lambda token: {
                "num_beams": 3,
                "eos_token_id": [token("</s>"), token("▁!")],
                "length_penalty": 0.6,
                "early_stopping": True,
                "suppress_tokens": [token("<unk>"), token("▁der")],
                "begin_suppress_tokens": [token("</s>"), token("▁un")],
            },
        ),
        Shape(
            family="Marian",
            name="marian-two-vocabularies",
            pairs=(pair,),
            configuration=lambda: MarianConfig(
                **_bart_sizes(width=24, heads=(3, 1), layers=(1, 2), feed_forward=(48, 32), activation="relu"),
                share_encoder_decoder_embeddings=False,
                scale_embedding=True,
            ),
            tokenize=lambda folder, sentences: save_marian(
                folder, english(sentences), german(sentences), separate=True
            ),
            special=special,
            generation=lambda token: {
                "no_repeat_ngram_size": 3,
                "repetition_penalty": 1.2,
                "bad_words_ids": [[token("<pad>")], [token("<unk>")]],
            },
        ),
    ]


def m2m100() -> list[Shape]:
    """M2M100 and, with a tokenizer and languages of its own, NLLB."""
    special = {
        "bos_token_id": "<s>",
        "pad_token_id": "<pad>",
        "eos_token_id": "</s>",
        "decoder_start_token_id": "</s>",
    }
    pairs = tuple(Pair(source="en", target=target, first=target) for target in ("de", "fr"))
    return [
        Shape(
            family="M2M100",
            name="m2m100-3-heads",
            pairs=pairs,
            configuration=lambda: M2M100Config(
                **_bart_sizes(width=36, heads=(3, 3), layers=(1, 1), feed_forward=(64, 64), activation="relu")
            ),
            tokenize=lambda folder, sentences: save_m2m100(folder, all_texts(sentences)),
            special=special,
            generation=lambda token: {
                "num_beams": 5,
                "early_stopping": True,
                "forced_eos_token_id": token("</s>"),
                "renormalize_logits": True,
            },
        ),
        Shape(
            family="M2M100",
            name="nllb",
            pairs=tuple(Pair(source="eng_Latn", target=target, first=target) for target in ("deu_Latn", "fra_Latn")),
            configuration=lambda: M2M100Config(
                **_bart_sizes(width=32, heads=(4, 2), layers=(2, 1), feed_forward=(64, 32), activation="relu"),
            ),
            tokenize=lambda folder, sentences: save_nllb(folder, all_texts(sentences)),
            special=special,
            generation=lambda token: {
                "eos_token_id": [token("</s>"), token("▁!")],
                "bad_words_ids": [[token("▁die")], [token("▁."), token("▁.")], [token("▁un"), token("▁.")]],
            },
        ),
        Shape(
            family="M2M100",
            name="m2m100-deep-decoder",
            pairs=pairs,
            configuration=lambda: M2M100Config(
                **_bart_sizes(width=24, heads=(1, 3), layers=(1, 2), feed_forward=(32, 48), activation="gelu"),
                scale_embedding=False,
            ),
            tokenize=lambda folder, sentences: save_m2m100(folder, all_texts(sentences)),
            special=special,
            generation=lambda token: {
                "num_beams": 2,
                "suppress_tokens": [token("<unk>"), token("▁der")],
                "begin_suppress_tokens": [token("</s>")],
            },
        ),
    ]


def bart() -> list[Shape]:
    """BART, one of them with the decoding defaults that the published summarizers have."""
    special = {
        "bos_token_id": "<s>",
        "pad_token_id": "<pad>",
        "eos_token_id": "</s>",
        "decoder_start_token_id": "</s>",
    }

    def shape(
        name: str, sizes: dict[str, Any], *, first: str | None, generation: Callable[[Token], dict[str, Any]]
    ) -> Shape:
        return Shape(
            family="BART",
            name=name,
            pairs=(Pair(source="en", target="de", first=first),),
            configuration=lambda: BartConfig(**sizes),
            tokenize=lambda folder, sentences: save_bart(folder, all_texts(sentences)),
            special=special,
            generation=generation,
            named_languages=True,
        )

    return [
        shape(
            "bart-3-heads",
            _bart_sizes(width=36, heads=(3, 3), layers=(1, 1), feed_forward=(64, 64), activation="gelu"),
            first="<s>",
            generation=lambda token: {
                "num_beams": 4,
                "forced_bos_token_id": token("<s>"),
                "forced_eos_token_id": token("</s>"),
                "no_repeat_ngram_size": 3,
                "length_penalty": 2.0,
                "min_length": 6,
                "early_stopping": True,
            },
        ),
        shape(
            "bart-deep-encoder",
            _bart_sizes(width=32, heads=(2, 4), layers=(2, 1), feed_forward=(64, 48), activation="relu")
            | {"scale_embedding": True},
            first=None,
            generation=lambda token: {
                "num_beams": 3,
                "eos_token_id": [token("</s>"), token("Ġ!")],
                "bad_words_ids": [[token("Ġder")], [token("Ġdie"), token("Ġkleine")]],
            },
        ),
        shape(
            "bart-deep-decoder",
            _bart_sizes(width=24, heads=(1, 3), layers=(1, 2), feed_forward=(32, 64), activation="silu"),
            first=None,
            generation=lambda token: {
                "num_beams": 2,
                "forced_eos_token_id": token("</s>"),
                "begin_suppress_tokens": [token("d"), token("e")],  # not EOS: it is forced
                "suppress_tokens": [token("<unk>"), token("Ġdie")],
                "renormalize_logits": True,
            },
        ),
        pegasus(),
    ]


def pegasus() -> Shape:
    """Pegasus: BART with fixed positions, and norms before the layers as in mBART."""
    sizes = _bart_sizes(width=32, heads=(2, 4), layers=(2, 1), feed_forward=(64, 48), activation="relu")
    return Shape(
        family="BART",
        name="pegasus",
        pairs=(Pair(source="und", target="und"),),
        configuration=lambda: PegasusConfig(**sizes, scale_embedding=True),
        tokenize=lambda folder, sentences: save_pegasus(folder, all_texts(sentences)),
        special={"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"},
        generation=lambda token: {"num_beams": 4, "length_penalty": 0.6, "forced_eos_token_id": token("</s>")},
    )


def mbart() -> list[Shape]:
    """mBART, whose start token is the language, and mBART-50, which forces it as the first token."""
    special = {"bos_token_id": "<s>", "pad_token_id": "<pad>", "eos_token_id": "</s>"}
    pairs = tuple(Pair(source="en_XX", target=target, start=target) for target in ("de_DE", "fr_XX"))
    return [
        Shape(
            family="mBART",
            name="mbart-3-heads",
            pairs=pairs,
            configuration=lambda: MBartConfig(
                **_bart_sizes(width=36, heads=(3, 3), layers=(1, 1), feed_forward=(64, 64), activation="gelu"),
                scale_embedding=True,
            ),
            tokenize=lambda folder, sentences: save_mbart(folder, all_texts(sentences)),
            special=special | {"decoder_start_token_id": "de_DE"},
            generation=lambda token: {
                "num_beams": 5,
                "forced_eos_token_id": token("</s>"),
                "early_stopping": "never",
                "renormalize_logits": True,
            },
        ),
        Shape(
            family="mBART",
            name="mbart-50",
            pairs=tuple(Pair(source="en_XX", target=target, first=target) for target in ("de_DE", "fr_XX")),
            configuration=lambda: MBartConfig(
                **_bart_sizes(width=32, heads=(4, 2), layers=(2, 1), feed_forward=(64, 48), activation="relu")
            ),
            tokenize=lambda folder, sentences: save_mbart50(folder, all_texts(sentences)),
            special=special | {"decoder_start_token_id": "</s>"},
            generation=lambda token: {
                "num_beams": 3,
                "eos_token_id": [token("</s>"), token("▁!")],
                "repetition_penalty": 1.3,
                "begin_suppress_tokens": [token("</s>"), token("▁un")],
            },
        ),
        Shape(
            family="mBART",
            name="mbart-deep-decoder",
            pairs=pairs,
            configuration=lambda: MBartConfig(
                **_bart_sizes(width=24, heads=(3, 1), layers=(1, 2), feed_forward=(32, 64), activation="gelu_new")
            ),
            tokenize=lambda folder, sentences: save_mbart(folder, all_texts(sentences)),
            special=special | {"decoder_start_token_id": "de_DE"},
            generation=lambda token: {
                "bad_words_ids": [[token("▁der")], [token("▁un"), token("▁chien")]],
                "suppress_tokens": [token("<unk>"), token("▁une")],
            },
        ),
    ]


SHAPES = [*marian(), *m2m100(), *bart(), *mbart(), *t5()]
