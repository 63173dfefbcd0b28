"""Other programs on the same GPU: ``generate`` and CTranslate2.

Their models are random, of the same sizes.
"""

import importlib.util
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_checks.model import Sizes
from benchmarks.gpu_checks.report import Report
from benchmarks.gpu_checks.speed import Generate

GENERATE = "Hugging Face generate fp16"
CTRANSLATE2 = "CTranslate2 fp16"


@contextmanager
def peers(report: Report, sizes: Sizes, device: torch.device) -> Iterator[dict[str, Generate]]:
    """The installed programs that can use the device.

    A line explains why another is missing.
    """
    with ExitStack() as opened:
        found: dict[str, Generate] = {}
        missing = None if device.type == "cuda" else "there is no GPU"
        if missing is None and importlib.util.find_spec("transformers") is None:
            missing = "transformers is not installed"
        if missing is not None:
            report.skip(GENERATE, missing)
            report.skip(CTRANSLATE2, missing)
            yield found
            return
        from benchmarks.common.random_marian import MarianSizes, make_checkpoint  # noqa: PLC0415 - needs transformers

        folder = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "checkpoint"
        marian = MarianSizes(
            vocabulary=sizes.vocabulary, layers=sizes.layers, width=sizes.width, feed_forward=sizes.feed_forward
        )
        with report.part(GENERATE) as time_left:
            if time_left:
                make_checkpoint(marian, folder)
                found[GENERATE] = _generate(folder, device)
        with report.part(CTRANSLATE2) as time_left:
            if importlib.util.find_spec("ctranslate2") is None:
                report.skip(CTRANSLATE2, "ctranslate2 is not installed")
            elif time_left and GENERATE in found:
                found[CTRANSLATE2] = _ctranslate2(folder, folder.with_name("ctranslate2"))
        yield found


def _generate(checkpoint: Path, device: torch.device) -> Generate:
    import transformers  # noqa: PLC0415 - may not be installed

    auto: Any = transformers  # untyped
    model = auto.AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float16).eval().to(device)

    def run(sources: Sequence[Sequence[int]], beam_size: int, tokens: int) -> None:
        source_ids = torch.tensor([list(source) for source in sources], device=device)
        with torch.inference_mode():
            model.generate(
                input_ids=source_ids,
                attention_mask=torch.ones_like(source_ids),
                do_sample=False,
                num_beams=beam_size,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                max_length=None,
            )
        torch.cuda.synchronize(device)

    return run


def _ctranslate2(checkpoint: Path, out: Path) -> Generate:
    import ctranslate2  # noqa: PLC0415 - may not be installed
    from ctranslate2.converters import TransformersConverter  # noqa: PLC0415

    TransformersConverter(str(checkpoint)).convert(str(out), quantization="float16")
    translator = ctranslate2.Translator(str(out), device="cuda", compute_type="float16")
    tokens_of = _vocabulary(out)

    def run(sources: Sequence[Sequence[int]], beam_size: int, tokens: int) -> None:
        translator.translate_batch(
            [[tokens_of[token] for token in source] for source in sources],
            beam_size=beam_size,
            min_decoding_length=tokens,
            max_decoding_length=tokens,
        )

    return run


def _vocabulary(model: Path) -> list[str]:
    """The tokens of a converted model, by id."""
    return [str(token) for token in json.loads((model / "shared_vocabulary.json").read_text(encoding="utf-8"))]
