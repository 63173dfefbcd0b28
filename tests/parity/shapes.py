"""The checkpoints to compare: three and more small shapes of each family, unlike one another in every way they can be.

Together they have one layer and several, encoders deeper and shallower than their decoders, odd numbers of heads,
every activation and embedding setting that a family honours, tied and untied weights, shared and separate
vocabularies, and in their ``generation_config.json`` every default that decoding knows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import (
    BartConfig,
    M2M100Config,
    MarianConfig,
    MBartConfig,
    MT5Config,
    PegasusConfig,
    PreTrainedConfig,
    T5Config,
    UMT5Config,
)
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

from tests.parity.checkpoints import Pair, Shape
from tests.parity.texts import Parallel, all_texts, english, german, targets
from tests.support.checkpoints import tokenizer_checkpoints as tokenizers

FAIRSEQ = {"bos_token_id": "<s>", "pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "</s>"}
WITHOUT_START = {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"}
"""Special tokens of families whose decoder begins with padding."""
TASKS = {
    "translation_en_to_de": {"prefix": "translate English to German: "},
    "translation_en_to_fr": {"prefix": "translate English to French: "},
}
Save = Callable[..., None]
"""Trains a tokenizer on texts, and saves it in a folder."""


def _shape(
    family: str,
    name: str,
    configuration: Callable[..., PreTrainedConfig],
    sizes: Mapping[str, Any],
    *,
    save: Save,
    read: Sequence[Callable[[Sequence[Parallel]], list[str]]] = (all_texts,),
    special: Mapping[str, str] = FAIRSEQ,
    **others: Any,
) -> Shape:
    """A shape; its tokenizer is made by `save` of what is read from sentences."""
    return Shape(
        family=family,
        name=name,
        configuration=lambda: configuration(**sizes),
        tokenize=lambda folder, sentences: save(folder, *(texts(sentences) for texts in read)),
        special=special,
        **others,
    )


def _pieces(texts: Sequence[str], size: int) -> bytes:
    """So few different words have too few parts in common for a unigram model to be grown."""
    return tokenizers.pieces(texts, size, model_type="bpe")


def _of_pieces(save: Save, size: int, *others: Any) -> Save:
    return lambda folder, texts: save(folder, _pieces(texts, size), *others)


def _save_marian(folder: Path, source: Sequence[str], target: Sequence[str], **options: Any) -> None:
    """Where the sides have vocabularies of their own, of different sizes, the tokens that both need come first."""
    languages = ("eng", "mul" if options.get("codes") else "deu")
    tokenizers.save_marian(folder, _pieces(source, 70), _pieces(target, 120), languages=languages, **options)


def _sizes(
    width: int,
    heads: tuple[int, int],
    layers: tuple[int, int],
    feed_forward: tuple[int, int],
    activation: str,
    **others: Any,
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
        **others,
    }


def marian() -> list[Shape]:
    """As published by OPUS-MT: one pair, several target languages, and two vocabularies."""
    shape = partial(_shape, "Marian", configuration=MarianConfig, special=WITHOUT_START)
    pairs = (Pair(source="eng", target="deu"),)
    return [
        shape(
            "marian-3-heads",
            sizes=_sizes(36, (3, 3), (1, 1), (64, 64), "swish", scale_embedding=True),
            pairs=pairs,
            save=_save_marian,
            read=(english, german),
            generation=lambda token: {
                "num_beams": 4,
                "bad_words_ids": [[token("<pad>")]],
                "forced_eos_token_id": token("</s>"),
                "renormalize_logits": True,
            },
        ),
        shape(
            "marian-two-targets",
            sizes=_sizes(32, (4, 4), (2, 1), (48, 96), "gelu"),
            pairs=tuple(Pair(source="eng", target=code, task_prefix=f">>{code}<< ") for code in ("deu", "fra")),
            save=partial(_save_marian, codes=(">>deu<<", ">>fra<<")),
            read=(english, targets),
            generation=lambda token: {
                "num_beams": 3,
                "eos_token_id": [token("</s>"), token("▁!")],
                "length_penalty": 0.6,
                "early_stopping": True,
                "suppress_tokens": [token("<unk>"), token("▁der")],
                "begin_suppress_tokens": [token("</s>"), token("▁un")],
            },
        ),
        shape(
            "marian-two-vocabularies",
            sizes=_sizes(
                24, (3, 1), (1, 2), (48, 32), "relu", share_encoder_decoder_embeddings=False, scale_embedding=True
            ),
            pairs=pairs,
            save=partial(_save_marian, separate=True),
            read=(english, german),
            generation=lambda token: {
                "no_repeat_ngram_size": 3,
                "repetition_penalty": 1.2,
                "bad_words_ids": [[token("<pad>")], [token("<unk>")]],
            },
        ),
    ]


def m2m100() -> list[Shape]:
    """M2M100 and, with a tokenizer and languages of its own, NLLB."""
    shape = partial(_shape, "M2M100", configuration=M2M100Config)
    pairs = tuple(Pair(source="en", target=target, first=target) for target in ("de", "fr"))
    return [
        shape(
            "m2m100-3-heads",
            sizes=_sizes(36, (3, 3), (1, 1), (64, 64), "relu"),
            pairs=pairs,
            save=_of_pieces(tokenizers.save_m2m100, 170),
            generation=lambda token: {
                "num_beams": 5,
                "early_stopping": True,
                "forced_eos_token_id": token("</s>"),
                "renormalize_logits": True,
            },
        ),
        shape(
            "nllb",
            sizes=_sizes(32, (4, 2), (2, 1), (64, 32), "relu"),
            pairs=tuple(Pair(source="eng_Latn", target=target, first=target) for target in ("deu_Latn", "fra_Latn")),
            save=lambda folder, texts: tokenizers.save_nllb(folder, texts, 180, ["deu_Latn", "eng_Latn", "fra_Latn"]),
            generation=lambda token: {
                "eos_token_id": [token("</s>"), token("▁!")],
                "bad_words_ids": [[token("▁die")], [token("▁."), token("▁.")], [token("▁un"), token("▁.")]],
            },
        ),
        shape(
            "m2m100-deep-decoder",
            sizes=_sizes(24, (1, 3), (1, 2), (32, 48), "gelu", scale_embedding=False),
            pairs=pairs,
            save=_of_pieces(tokenizers.save_m2m100, 170),
            generation=lambda token: {
                "num_beams": 2,
                "suppress_tokens": [token("<unk>"), token("▁der")],
                "begin_suppress_tokens": [token("</s>")],
            },
        ),
    ]


def bart() -> list[Shape]:
    """BART, one of them with the decoding defaults that the published summarizers have, and Pegasus.

    Pegasus is BART with fixed positions, and norms before the layers as in mBART.
    """
    save = partial(tokenizers.save_bart, size=180)
    shape = partial(_shape, "BART", configuration=BartConfig, save=save, named_languages=True)
    pairs = (Pair(source="en", target="de"),)
    return [
        shape(
            "bart-3-heads",
            sizes=_sizes(36, (3, 3), (1, 1), (64, 64), "gelu"),
            pairs=(Pair(source="en", target="de", first="<s>"),),
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
            sizes=_sizes(32, (2, 4), (2, 1), (64, 48), "relu", scale_embedding=True),
            pairs=pairs,
            generation=lambda token: {
                "num_beams": 3,
                "eos_token_id": [token("</s>"), token("Ġ!")],
                "bad_words_ids": [[token("Ġder")], [token("Ġdie"), token("Ġkleine")]],
            },
        ),
        shape(
            "bart-deep-decoder",
            sizes=_sizes(24, (1, 3), (1, 2), (32, 64), "silu"),
            pairs=pairs,
            generation=lambda token: {
                "num_beams": 2,
                "forced_eos_token_id": token("</s>"),
                "begin_suppress_tokens": [token("d"), token("e")],  # not EOS: it is forced
                "suppress_tokens": [token("<unk>"), token("Ġdie")],
                "renormalize_logits": True,
            },
        ),
        _shape(
            "BART",
            "pegasus",
            PegasusConfig,
            _sizes(32, (2, 4), (2, 1), (64, 48), "relu", scale_embedding=True),
            pairs=(Pair(source="und", target="und"),),
            save=_of_pieces(tokenizers.save_pegasus, 170),
            special=WITHOUT_START,
            generation=lambda token: {"num_beams": 4, "length_penalty": 0.6, "forced_eos_token_id": token("</s>")},
        ),
    ]


def mbart() -> list[Shape]:
    """mBART, whose start token is the language, and mBART-50, which forces it as the first token."""
    starting = FAIRSEQ | {"decoder_start_token_id": "de_DE"}
    save = _of_pieces(tokenizers.save_mbart, 170, FAIRSEQ_LANGUAGE_CODES)
    shape = partial(_shape, "mBART", configuration=MBartConfig)
    pairs = tuple(Pair(source="en_XX", target=target, start=target) for target in ("de_DE", "fr_XX"))
    return [
        shape(
            "mbart-3-heads",
            sizes=_sizes(36, (3, 3), (1, 1), (64, 64), "gelu", scale_embedding=True),
            pairs=pairs,
            save=save,
            special=starting,
            generation=lambda token: {
                "num_beams": 5,
                "forced_eos_token_id": token("</s>"),
                "early_stopping": "never",
                "renormalize_logits": True,
            },
        ),
        shape(
            "mbart-50",
            sizes=_sizes(32, (4, 2), (2, 1), (64, 48), "relu"),
            pairs=tuple(Pair(source="en_XX", target=target, first=target) for target in ("de_DE", "fr_XX")),
            save=_of_pieces(tokenizers.save_mbart50, 170),
            generation=lambda token: {
                "num_beams": 3,
                "eos_token_id": [token("</s>"), token("▁!")],
                "repetition_penalty": 1.3,
                "begin_suppress_tokens": [token("</s>"), token("▁un")],
            },
        ),
        shape(
            "mbart-deep-decoder",
            sizes=_sizes(24, (3, 1), (1, 2), (32, 64), "gelu_new"),
            pairs=pairs,
            save=save,
            special=starting,
            generation=lambda token: {
                "bad_words_ids": [[token("▁der")], [token("▁un"), token("▁chien")]],
                "suppress_tokens": [token("<unk>"), token("▁une")],
            },
        ),
    ]


def _t5_sizes(
    width: int,
    heads: int,
    head_width: int,
    layers: tuple[int, int],
    feed_forward: str,
    distance: int,
    **others: Any,
) -> dict[str, Any]:
    return {
        "d_model": width,
        "num_heads": heads,
        "d_kv": head_width,
        "d_ff": 2 * width,
        "num_layers": layers[0],
        "num_decoder_layers": layers[1],
        "feed_forward_proj": feed_forward,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": distance,
        "dropout_rate": 0.0,
        **others,
    }


def t5() -> list[Shape]:
    """T5 as first published and as revised: gated, and with an output layer of its own; mT5 and umT5."""
    tasks = tuple(
        Pair(source="en", target=target, task_prefix=TASKS[f"translation_en_to_{target}"]["prefix"])
        for target in ("de", "fr")
    )

    def with_tasks(sentences: Sequence[Parallel]) -> list[str]:
        return [*all_texts(sentences), *(task["prefix"] for task in TASKS.values())]

    shape = partial(_shape, "T5", read=(with_tasks,), special=WITHOUT_START)
    save = _of_pieces(tokenizers.save_t5, 150, 10)
    return [
        shape(
            "t5-3-heads",
            T5Config,
            _t5_sizes(32, 3, 10, (1, 1), "relu", 20, task_specific_params=TASKS),
            pairs=tasks,
            save=_of_pieces(tokenizers.save_t5, 150, 100),
            generation=lambda token: {
                "num_beams": 4,
                "early_stopping": True,
                "no_repeat_ngram_size": 3,
                "forced_eos_token_id": token("</s>"),
                "bad_words_ids": [[token("▁der")], [token("▁un"), token("▁chien")]],
            },
            multiple_of=32,
        ),
        shape(
            "t5-gated-untied",
            T5Config,
            _t5_sizes(24, 2, 12, (2, 1), "gated-gelu", 32, tie_word_embeddings=False),
            pairs=(Pair(source="en", target="de"),),
            save=save,
            generation=lambda token: {
                "eos_token_id": [token("</s>"), token("▁!")],
                "suppress_tokens": [token("<unk>"), token("▁der")],
                "begin_suppress_tokens": [token("</s>"), token("▁ein")],
            },
            named_languages=True,
            steps=400,
        ),
        shape(
            "t5-deep-decoder",
            T5Config,
            _t5_sizes(24, 1, 8, (1, 2), "gated-silu", 16, task_specific_params=TASKS),
            pairs=tasks,
            save=save,
            uncached=True,
            generation=lambda _: {
                "num_beams": 2,
                "repetition_penalty": 1.2,
                "length_penalty": 0.0,
                "renormalize_logits": True,
            },
        ),
        *(
            shape(
                name,
                configuration,
                _t5_sizes(24, 2, 9, layers, "gated-gelu", 16, tie_word_embeddings=False),
                pairs=(Pair(source="und", target="und"),),
                save=save,
                generation=lambda _: {"num_beams": 3, "length_penalty": 0.8, "no_repeat_ngram_size": 2},
                steps=400,
            )
            for name, configuration, layers in (("mt5", MT5Config, (2, 1)), ("umt5", UMT5Config, (2, 2)))
        ),
    ]


SHAPES = [*marian(), *m2m100(), *bart(), *mbart(), *t5()]
