"""Check decoding on a GPU against the CPU, and measure its speed.

It makes a model of OPUS-MT's sizes with random weights, or takes a bundle, and needs no network. Without a GPU it runs
on the CPU, bound as on a GPU, with a small model; checks that need a GPU are skipped.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import onnxruntime
import torch

from benchmarks.common.graphs import Model, Sizes, opened, random_graphs
from benchmarks.common.progress import write_json
from benchmarks.gpu_checks.correctness import Setting, bleu, invariance, parity
from benchmarks.gpu_checks.report import Found, Report
from benchmarks.gpu_checks.speed import bytes_a_second, load, peak_memory, peers, steps, throughput
from jumok_export.bundles.recipe import half_sources, write_variant
from jumok_serve.errors import DeviceError
from jumok_serve.runtime.device import CPU, CPU_AS_DEVICE, Device, candidate_devices
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.process_memory import freeze_objects

SMALL = Sizes(layers=1, width=64, feed_forward=96, vocabulary=1200)
"""Sizes of the model that shows that the check itself works."""


def device() -> tuple[Device, str]:
    """The GPU, or the CPU as its substitute, and the reason."""
    try:
        (cuda,) = candidate_devices("cuda")
    except DeviceError as error:
        return CPU_AS_DEVICE, str(error)
    return cuda, ""


def made(sizes: Sizes, folder: Path) -> Model:
    """Make a model with random weights in fp32 and fp16."""
    graphs = random_graphs(sizes)
    variants = {
        "fp32": write_variant(graphs, folder, "fp32", targets=("cpu", "device")),
        "fp16": write_variant(half_sources(graphs), folder, "fp16", targets=("device",)),
    }
    return Model(path=folder, variants=variants, vocabulary=sizes.vocabulary)


def main() -> int:
    """Run the checks, print a line for each, and write JSON."""
    parser = argparse.ArgumentParser(description="Check and measure decoding on a GPU.")
    parser.add_argument("--bundle", type=Path, help="bundle in fp32 and fp16; default: untrained, of OPUS-MT's size")
    parser.add_argument("--source", type=Path, help="sentences for --bundle, one per line, for BLEU")
    parser.add_argument("--reference", type=Path, help="their translations")
    parser.add_argument("--budget", type=float, default=450, help="seconds; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to a file too")
    arguments = parser.parse_args()
    report = Report(arguments.budget)
    started = time.monotonic()
    where, why_not = device()
    about = _about(where)
    for name, value in about.items():
        print(f"{name}: {value}")
    print()
    if why_not:
        report.add("CUDA", "skipped", why_not)
    with tempfile.TemporaryDirectory() as folder:
        sizes = Sizes() if where.name == "cuda" else SMALL
        model = opened(arguments.bundle) if arguments.bundle else made(sizes, Path(folder))
        report.add("model", "measured", f"ready after {time.monotonic() - started:.0f} s")
        if missing := {"fp32", "fp16"} - {*model.variants}:
            parser.error(
                f"{arguments.bundle} has no {', '.join(missing)}: export or import it with --precision fp32,fp16"
            )
        check(report, model, sizes, where, arguments)
    print(f"\n{report.summary()}, in {time.monotonic() - started:.0f} s")
    write_json(arguments.json, {"about": about, "lines": list(map(asdict, report.lines))})
    return 0 if report.passed else 1


def _about(where: Device) -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if where.name == "cuda" and torch.cuda.is_available() else "none"
    return {
        "machine": f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, GPU: {gpu}",
        "versions": f"ONNX Runtime {onnxruntime.__version__}, PyTorch {torch.__version__}",
        "provider": where.providers[0],
    }


def check(report: Report, model: Model, sizes: Sizes, where: Device, arguments: argparse.Namespace) -> None:
    """Run all checks, the most important first."""
    on_gpu = where.name == "cuda"
    memory = torch.device("cuda" if on_gpu and torch.cuda.is_available() else "cpu")
    count, tokens, lengths = (100, 32, (4, 40)) if on_gpu else (6, 8, (4, 12))
    setting = Setting(report=report, model=model, count=count, tokens=tokens, lengths=lengths)
    batches = (1, 32, 256, 1024) if on_gpu else (1, 3)
    shapes = [(batch, beam_size) for batch in batches for beam_size in (1, 4)]
    graphs: dict[str, Graphs] = {}

    def stays(precision: str) -> Found | None:
        # A session with an operator that runs elsewhere is refused.
        graphs[precision] = Graphs(model, precision, device=where)
        if on_gpu:
            return Found("0 copies to or from the host within the graphs", {"copies": 0}, passed=True)
        report.add(f"{precision} stays on the device", "skipped", "there is no GPU, and the CPU needs no copies")
        return None

    with peak_memory(report, memory):
        for precision in ("fp32", "fp16"):
            report.run(f"{precision} stays on the device", partial(stays, precision))
        if len(graphs) < 2:
            return
        freeze_objects()  # as a server does
        parity(setting, Graphs(model, "fp32", device=CPU), graphs["fp32"])
        for precision in ("fp32", "fp16"):
            invariance(setting, graphs[precision], precision)
        bandwidth = bytes_a_second(memory)
        report.add("memory bandwidth", "measured", f"{bandwidth / 1e9:.0f} GB/s", {"bytes_per_s": bandwidth})
        for precision in ("fp16", "fp32"):
            some = shapes if precision == "fp16" else shapes[:4]
            steps(setting, graphs[precision], precision, some, bandwidth)
        load(setting, graphs["fp16"], outstanding=256 if on_gpu else 4, count=2048 if on_gpu else 8)
        bleu(report, arguments.bundle, arguments.source, arguments.reference, where, count=1000 if on_gpu else 20)
        with peers(report, sizes, memory) as others:
            freeze_objects()
            throughput(setting, graphs["fp16"], "fp16", shapes, others)


if __name__ == "__main__":
    sys.exit(main())
