"""Other programs on the same GPU: ``generate`` and CTranslate2.

Their models are random, of the same sizes.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter

from benchmarks.common.graphs import Sizes
from benchmarks.common.random_marian import MarianSizes, make_checkpoint
from benchmarks.gpu_checks.report import Report
from benchmarks.gpu_checks.speed import Generate

GENERATE = "Hugging Face generate fp16"
CTRANSLATE2 = "CTranslate2 fp16"


@contextmanager
def peers(report: Report, sizes: Sizes, device: torch.device) -> Iterator[dict[str, Generate]]:
    """Open the programs that can use the device."""
    found: dict[str, Generate] = {}
    if device.type != "cuda":
        for name in (GENERATE, CTRANSLATE2):
            report.add(name, "skipped", "there is no GPU")
        yield found
        return
    with tempfile.TemporaryDirectory() as opened:
        checkpoint, converted = Path(opened) / "checkpoint", Path(opened) / "ctranslate2"

        def open_generate() -> None:
            make_checkpoint(MarianSizes(**asdict(sizes)), checkpoint)
            found[GENERATE] = _generate(checkpoint, device)

        def open_ctranslate2() -> None:
            found[CTRANSLATE2] = _ctranslate2(checkpoint, converted)

        report.run(GENERATE, open_generate)
        if found:
            report.run(CTRANSLATE2, open_ctranslate2)
        yield found


def _generate(checkpoint: Path, device: torch.device) -> Generate:
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
    TransformersConverter(str(checkpoint)).convert(str(out), quantization="float16")
    translator = ctranslate2.Translator(str(out), device="cuda", compute_type="float16")
    tokens_of = json.loads((out / "shared_vocabulary.json").read_text(encoding="utf-8"))

    def run(sources: Sequence[Sequence[int]], beam_size: int, tokens: int) -> None:
        translator.translate_batch(
            [[tokens_of[token] for token in source] for source in sources],
            beam_size=beam_size,
            min_decoding_length=tokens,
            max_decoding_length=tokens,
        )

    return run
