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
from contextlib import ExitStack
from pathlib import Path

import onnxruntime
import torch

from benchmarks.common.graphs import Model, Sizes, opened, random_graphs
from benchmarks.gpu_checks.correctness import bleu, invariance, parity
from benchmarks.gpu_checks.peers import peers
from benchmarks.gpu_checks.report import Report, summary
from benchmarks.gpu_checks.speed import bytes_a_second, load, peak_memory, steps, throughput
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
    report = Report(arguments.budget, lambda line: print(line, flush=True))
    started = time.monotonic()
    where, why_not = device()
    about = _about(where)
    for name, value in about.items():
        print(f"{name}: {value}")
    print()
    if why_not:
        report.skip("CUDA", why_not)
    with tempfile.TemporaryDirectory() as folder:
        sizes = Sizes() if where.name == "cuda" else SMALL
        model = opened(arguments.bundle) if arguments.bundle else made(sizes, Path(folder))
        report.add("model", "measured", f"ready after {time.monotonic() - started:.0f} s")
        if missing := {"fp32", "fp16"} - {*model.variants}:
            parser.error(
                f"{arguments.bundle} has no {', '.join(missing)}: export or import it with --precision fp32,fp16"
            )
        check(report, model, sizes, where, arguments)
    print(f"\n{summary(report.lines)}, in {time.monotonic() - started:.0f} s")
    if arguments.json:
        arguments.json.write_text(report.json(about), encoding="utf-8")
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
    batches = (1, 32, 256, 1024) if on_gpu else (1, 3)
    shapes = [(batch, beam_size) for batch in batches for beam_size in (1, 4)]
    with ExitStack() as opened_here:
        opened_here.enter_context(peak_memory(report, memory))
        graphs = {}
        for precision in ("fp32", "fp16"):
            name = f"{precision} stays on the device"
            with report.part(name):
                # A session with an operator that runs elsewhere is refused.
                graphs[precision] = Graphs(model, precision, device=where)
                if on_gpu:
                    report.check(name, True, "0 copies to or from the host within the graphs", copies=0)
                else:
                    report.skip(name, "there is no GPU, and the CPU needs no copies")
        if len(graphs) < 2:
            return
        freeze_objects()  # as a server does
        on_cpu = Graphs(model, "fp32", device=CPU)
        parity(report, model, on_cpu, graphs["fp32"], count=count, tokens=tokens, lengths=lengths)
        for precision in ("fp32", "fp16"):
            invariance(report, model, graphs[precision], precision, count=count, tokens=tokens, lengths=lengths)
        bandwidth = bytes_a_second(memory)
        report.add("memory bandwidth", "measured", f"{bandwidth / 1e9:.0f} GB/s", bytes_per_s=bandwidth)
        for precision in ("fp16", "fp32"):
            some = shapes if precision == "fp16" else shapes[:4]
            settings = {"source": lengths[1] - 8, "tokens": tokens}
            steps(report, model, graphs[precision], precision, shapes=some, bandwidth=bandwidth, **settings)
        load(
            report,
            model,
            graphs["fp16"],
            outstanding=256 if on_gpu else 4,
            count=2048 if on_gpu else 8,
            lengths=lengths,
            tokens=tokens,
            max_batch_tokens=2**17,
        )
        bleu(report, arguments.bundle, arguments.source, arguments.reference, where, count=1000 if on_gpu else 20)
        with peers(report, sizes, memory) as others:
            freeze_objects()
            settings = {"source": lengths[1] - 8, "tokens": tokens}
            throughput(report, model, graphs["fp16"], "fp16", shapes=shapes, peers=others, **settings)


if __name__ == "__main__":
    sys.exit(main())
