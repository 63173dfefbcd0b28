"""The T5 checkpoints to compare: one as first published, two as revised, mT5 and umT5."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import MT5Config, PreTrainedConfig, T5Config, UMT5Config

from tests.parity.checkpoints import Pair, Shape
from tests.parity.texts import Parallel, all_texts
from tests.parity.tokenizers import save_t5

TASKS = {
    "translation_en_to_de": {"prefix": "translate English to German: "},
    "translation_en_to_fr": {"prefix": "translate English to French: "},
}


def t5() -> list[Shape]:
    """T5 as first published and as revised: gated, and with an output layer of its own; mT5 and umT5."""
    special = {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"}
    tasks = tuple(
        Pair(source="en", target=target, task_prefix=TASKS[f"translation_en_to_{target}"]["prefix"])
        for target in ("de", "fr")
    )

    def tokenize(folder: Path, sentences: Sequence[Parallel], *, sentinels: int) -> None:
        save_t5(folder, [*all_texts(sentences), *(task["prefix"] for task in TASKS.values())], sentinels=sentinels)

    def configuration(
        *,
        width: int,
        heads: int,
        head_width: int,
        layers: tuple[int, int],
        feed_forward: str,
        distance: int,
        kind: Callable[..., PreTrainedConfig] = T5Config,
        **others: Any,
    ) -> Callable[[], PreTrainedConfig]:
        sizes: dict[str, Any] = {
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
        return partial(kind, **sizes)

    shape = partial(Shape, family="T5", special=special)
    return [
        shape(
            name="t5-3-heads",
            pairs=tasks,
            configuration=configuration(
                width=32,
                heads=3,
                head_width=10,
                layers=(1, 1),
                feed_forward="relu",
                distance=20,
                task_specific_params=TASKS,
            ),
            tokenize=partial(tokenize, sentinels=100),
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
            name="t5-gated-untied",
            pairs=(Pair(source="en", target="de"),),
            configuration=configuration(
                width=24,
                heads=2,
                head_width=12,
                layers=(2, 1),
                feed_forward="gated-gelu",
                distance=32,
                tie_word_embeddings=False,
            ),
            tokenize=partial(tokenize, sentinels=10),
            generation=lambda token: {
                "eos_token_id": [token("</s>"), token("▁!")],
                "suppress_tokens": [token("<unk>"), token("▁der")],
                "begin_suppress_tokens": [token("</s>"), token("▁ein")],
            },
            named_languages=True,
            steps=400,
        ),
        shape(
            name="t5-deep-decoder",
            pairs=tasks,
            configuration=configuration(
                width=24,
                heads=1,
                head_width=8,
                layers=(1, 2),
                feed_forward="gated-silu",
                distance=16,
                task_specific_params=TASKS,
            ),
            tokenize=partial(tokenize, sentinels=10),
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
                name=name,
                pairs=(Pair(source="und", target="und"),),
                configuration=configuration(
                    width=24,
                    heads=2,
                    head_width=9,
                    layers=layers,
                    feed_forward="gated-gelu",
                    distance=16,
                    tie_word_embeddings=False,
                    kind=kind,
                ),
                tokenize=partial(tokenize, sentinels=10),
                generation=lambda _: {"num_beams": 3, "length_penalty": 0.8, "no_repeat_ngram_size": 2},
                steps=400,
            )
            for name, kind, layers in (("mt5", MT5Config, (2, 1)), ("umt5", UMT5Config, (2, 2)))
        ),
    ]
