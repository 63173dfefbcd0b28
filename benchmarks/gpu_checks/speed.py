"""Speed of a device: steps, throughput and load.

Steps are compared with memory traffic, throughput with other programs.
"""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ctranslate2
import numpy as np
import torch
import transformers
from ctranslate2.converters import TransformersConverter

from benchmarks.common.graphs import Sizes, sentence, sources
from benchmarks.common.random_marian import MarianSizes, make_checkpoint
from benchmarks.gpu_checks.correctness import Setting
from benchmarks.gpu_checks.report import Found, Report
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import Graphs

Generate = Callable[[Sequence[Sequence[int]], int, int], object]
"""Another program: translates sources with a beam size into translations of fixed length."""

GENERATE = "Hugging Face generate fp16"
CTRANSLATE2 = "CTranslate2 fp16"
COPIED_BYTES = 2**28
POLL_S = 0.005
MAX_BATCH_TOKENS = 2**17


def bytes_a_second(device: torch.device) -> float:
    """Memory bandwidth of the device, reads and writes together: the best of some copies."""
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    taken = []
    for _ in range(5):
        _finish(device)
        started = time.perf_counter()
        target.copy_(source)
        _finish(device)
        taken.append(time.perf_counter() - started)
    return 2 * COPIED_BYTES / min(taken)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def steps(
    setting: Setting, graphs: Graphs, precision: str, shapes: Sequence[tuple[int, int]], bandwidth: float
) -> None:
    """Measure steps against the time to read weights, memory and state, their lower bound."""
    model = setting.model
    weights = (model.path / model.variant(precision).weights).stat().st_size
    sizes = {"S": setting.source, "E": setting.tokens + setting.tokens // 2}

    def measure(sentences: int, beam_size: int) -> Found:
        step = statistics.median(setting.step_times(graphs, sentences, beam_size))
        read = sum(sentences * _bytes(spec, sizes) for spec in (*graphs.memory_specs, *graphs.state_specs))
        floor = (weights + read) / bandwidth
        return Found(
            f"{1e3 * step:.2f} ms, {step / floor:.1f} times the {1e3 * floor:.2f} ms that its bytes take",
            {"step_ms": 1e3 * step, "floor_ms": 1e3 * floor, "ratio": step / floor},
        )

    for shape in shapes:
        setting.report.run(f"{precision} step, {shape[0]} x {shape[1]}", partial(measure, *shape))


def _bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
    """Bytes of one sentence's part of a tensor."""
    shape = [axis if isinstance(axis, int) else sizes.get(axis, 1) for axis in spec.axes[1:]]
    return int(np.prod(shape)) * np.dtype(spec.dtype).itemsize


def throughput(
    setting: Setting, graphs: Graphs, precision: str, shapes: Sequence[tuple[int, int]], peers: Mapping[str, Generate]
) -> None:
    """Measure tokens per second, encoding included, by batch size, against other programs."""
    tokens = setting.tokens
    programs: dict[str, Generate] = {f"jumok {precision}": partial(setting.decode, graphs), **peers}

    def measure(program: str, batch: Sequence[Sequence[int]], beam_size: int, rates: dict[str, float]) -> Found:
        programs[program](batch, beam_size, min(4, tokens))  # warms up
        started = time.perf_counter()
        programs[program](batch, beam_size, tokens)
        rates[program] = rate = len(batch) * tokens / (time.perf_counter() - started)
        first = next(iter(rates.values()))
        beside = "" if len(rates) == 1 else f"; jumok is {first / rate:.2f} times as fast"
        return Found(f"{rate:.0f} tokens per second{beside}", {"tokens_per_s": rate})

    for sentences, beam_size in shapes:
        drawn = sources(setting.model.vocabulary, sentences, (setting.source, setting.source))
        rates: dict[str, float] = {}
        for program in programs:
            part = partial(measure, program, drawn, beam_size, rates)
            setting.report.run(f"{program}, {sentences} x {beam_size}", part)


def load(setting: Setting, graphs: Graphs, *, outstanding: int, count: int) -> None:
    """Measure the engine of a server with a constant number of outstanding requests."""

    def measure() -> Found:
        waiting = iter(setting.sources(seed=3, count=count))
        limits = EngineLimits(max_batch_tokens=MAX_BATCH_TOKENS)
        engine = Engine(graphs, pad=setting.model.pad, limits=limits, name="check")
        latencies: list[float] = []
        running: dict[Future[Decoded], float] = {}
        done: SimpleQueue[Future[Decoded]] = SimpleQueue()

        def submit(number: int) -> None:
            for source in islice(waiting, number):
                one = sentence(setting.model, source, beam_size=1, tokens=setting.tokens)
                running[one.future] = time.perf_counter()
                one.future.add_done_callback(done.put)
                engine.submit([one])

        started = time.perf_counter()
        try:
            submit(outstanding)
            while running:
                future = done.get()
                future.result()
                latencies.append(time.perf_counter() - running.pop(future))
                submit(1)
        finally:
            engine.close(drain=False)
        rate = count / (time.perf_counter() - started)
        median, late = (float(np.quantile(latencies, share)) for share in (0.5, 0.95))
        return Found(
            f"{rate:.1f} sentences and {rate * setting.tokens:.0f} tokens per second; a request takes {median:.2f} s, "
            f"one in 20 more than {late:.2f} s",
            {"sentences_per_s": rate, "tokens_per_s": rate * setting.tokens, "median_s": median, "p95_s": late},
        )

    setting.report.run(f"engine, {outstanding} requests outstanding", measure)


@contextmanager
def peak_memory(report: Report, device: torch.device) -> Iterator[None]:
    """Add a line with the peak GPU memory within this context, of all processes."""
    name = "peak device memory"
    if device.type != "cuda":
        report.add(name, "skipped", "there is no GPU")
        yield
        return
    most, over = 0, threading.Event()

    def poll() -> None:
        nonlocal most
        while not over.wait(POLL_S):
            free, total = torch.cuda.mem_get_info(device)
            most = max(most, total - free)

    watching = threading.Thread(target=poll, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        report.add(name, "measured", f"{most / 2**30:.2f} GiB, of all programs together", {"bytes": most})


@contextmanager
def peers(report: Report, sizes: Sizes, device: torch.device) -> Iterator[dict[str, Generate]]:
    """Open other programs that can use the device; their models are random, of the same sizes."""
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
