"""Speed of a device: steps, throughput and load.

Steps are compared with memory traffic, throughput with other programs.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
import torch

from benchmarks.common.graphs import Model, sentence, sources
from benchmarks.gpu_checks.correctness import decode, step_times
from benchmarks.gpu_checks.report import Report
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import Graphs

Generate = Callable[[Sequence[Sequence[int]], int, int], None]
"""Another program: translates sources with a beam size into translations of fixed length."""

COPIED_BYTES = 2**28
POLL_S = 0.005


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
    report: Report,
    model: Model,
    graphs: Graphs,
    precision: str,
    *,
    shapes: Sequence[tuple[int, int]],
    source: int,
    tokens: int,
    bandwidth: float,
) -> None:
    """Measure steps against the time to read weights, memory and state, their lower bound."""
    weights = (model.path / model.variant(precision).weights).stat().st_size
    for sentences, beam_size in shapes:
        name = f"{precision} step, {sentences} x {beam_size}"
        with report.part(name) as time_left:
            if not time_left:
                continue
            times = list(step_times(graphs, model, rows=(sentences, beam_size), source=source, steps=tokens))
            sizes = {"S": source, "E": tokens + tokens // 2}
            read = sum(sentences * _bytes(spec, sizes) for spec in (*graphs.memory_specs, *graphs.state_specs))
            floor = (weights + read) / bandwidth
            step = statistics.median(times)
            report.add(
                name,
                "measured",
                f"{1e3 * step:.2f} ms, {step / floor:.1f} times the {1e3 * floor:.2f} ms that its bytes take",
                step_ms=1e3 * step,
                floor_ms=1e3 * floor,
                ratio=step / floor,
            )


def _bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
    """Bytes of one sentence's part of a tensor."""
    shape = [axis if isinstance(axis, int) else sizes.get(axis, 1) for axis in spec.axes[1:]]
    return int(np.prod(shape)) * np.dtype(spec.dtype).itemsize


def throughput(
    report: Report,
    model: Model,
    graphs: Graphs,
    precision: str,
    *,
    shapes: Sequence[tuple[int, int]],
    source: int,
    tokens: int,
    peers: Mapping[str, Generate],
) -> None:
    """Measure tokens per second, encoding included, by batch size, against other programs."""
    for sentences, beam_size in shapes:
        drawn = sources(model.vocabulary, sentences, (source, source))

        def ours(batch: Sequence[Sequence[int]], size: int, length: int) -> None:
            decode(graphs, model, batch, beam_size=size, tokens=length)

        rates: dict[str, float] = {}
        for program, run in {f"jumok {precision}": ours, **peers}.items():
            name = f"{program}, {sentences} x {beam_size}"
            with report.part(name) as time_left:
                if not time_left:
                    continue
                run(drawn, beam_size, min(4, tokens))  # warms up
                started = time.perf_counter()
                run(drawn, beam_size, tokens)
                rates[program] = sentences * tokens / (time.perf_counter() - started)
                first = next(iter(rates.values()))
                beside = "" if len(rates) == 1 else f"; jumok is {first / rates[program]:.2f} times as fast"
                report.add(
                    name, "measured", f"{rates[program]:.0f} tokens per second{beside}", tokens_per_s=rates[program]
                )


def load(
    report: Report,
    model: Model,
    graphs: Graphs,
    *,
    outstanding: int,
    count: int,
    lengths: tuple[int, int],
    tokens: int,
    max_batch_tokens: int,
) -> None:
    """Measure the engine of a server with a constant number of outstanding requests."""
    name = f"engine, {outstanding} requests outstanding"
    with report.part(name) as time_left:
        if not time_left:
            return
        waiting = iter(sources(model.vocabulary, count, lengths, seed=3))
        engine = Engine(graphs, pad=model.pad, limits=EngineLimits(max_batch_tokens=max_batch_tokens), name="check")
        latencies: list[float] = []
        running: dict[Future[Decoded], float] = {}
        done: SimpleQueue[Future[Decoded]] = SimpleQueue()

        def submit(number: int) -> None:
            for _, source in zip(range(number), waiting, strict=False):
                one = sentence(model, source, beam_size=1, tokens=tokens)
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
        taken = time.perf_counter() - started
        median, late = (float(np.quantile(latencies, share)) for share in (0.5, 0.95))
        report.add(
            name,
            "measured",
            f"{count / taken:.1f} sentences and {count * tokens / taken:.0f} tokens per second; a request takes "
            f"{median:.2f} s, one in 20 more than {late:.2f} s",
            sentences_per_s=count / taken,
            tokens_per_s=count * tokens / taken,
            median_s=median,
            p95_s=late,
        )


@contextmanager
def peak_memory(report: Report, device: torch.device) -> Iterator[None]:
    """Add a line with the peak GPU memory within this context, of all processes."""
    name = "peak device memory"
    if device.type != "cuda":
        report.skip(name, "there is no GPU")
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
        report.add(name, "measured", f"{most / 2**30:.2f} GiB, of all programs together", bytes=float(most))
