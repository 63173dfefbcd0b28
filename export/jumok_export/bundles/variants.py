"""Write the graphs of a model in each precision, and verify them."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from jumok_export.bundles.recipe import half_sources, write_variant
from jumok_export.errors import ExportError, VerificationError
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.storage import WeightsFile
from jumok_export.parallel import threads_each
from jumok_export.quantization.calibration import Calibration
from jumok_export.quantization.find_matrices import quantized_matrices, rectified_keys
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_export.verification.agreement import SourceTexts, measure_agreement
from jumok_export.verification.fp16 import verify_fp16
from jumok_export.verification.fp32 import verify_device, verify_fp32, verify_sources
from jumok_export.verification.int8 import verify_int8
from jumok_export.verification.native import verify_native
from jumok_export.verification.runtime_side import GraphFailedError, RuntimeSide
from jumok_export.verification.samples import InputBounds
from jumok_export.verification.shortlist import verify_shortlist
from jumok_export.verification.sides import Side, TorchSide
from jumok_export.verification.trial import fp32_reference, int8_reference
from jumok_serve.errors import BundleError
from jumok_serve.manifest.manifest import Agreement, Check, PrecisionVariant, VerificationReport
from jumok_serve.manifest.parts import Target
from jumok_serve.runtime.device import CPU, CPU_AS_DEVICE, Device, agrees
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.process_memory import give_back_memory

CALIBRATION_LOSS = 0.002
"""Share of tokens by which scales by row must agree better with fp32 than calibrated ones, to be taken instead.

They are tried only if the calibrated ones agree too little for the server to choose int8 by itself.
"""


@dataclass(frozen=True)
class Folder:
    """Graphs of one precision that sessions can open before there is a manifest."""

    path: Path
    only: PrecisionVariant

    def variant(self, _: str) -> PrecisionVariant:
        """See `jumok_serve.runtime.graphs.GraphFolder`."""
        return self.only


class Written(NamedTuple):
    """Manifest entries of written graphs, by precision."""

    variants: dict[str, PrecisionVariant]
    reports: dict[str, VerificationReport]
    agreement: dict[str, Agreement]


@dataclass(eq=False)
class _Writer:
    model: nn.Module
    graphs: Mapping[str, Graph]
    bounds: InputBounds
    calibrator: Callable[[Mapping[str, Graph]], Calibration] | None
    listed: bool
    unverified: bool
    texts: SourceTexts
    weights: WeightsFile | None
    progress: Callable[[str], None]

    @cached_property
    def _side(self) -> TorchSide:
        return TorchSide(self.model)

    @cached_property
    def _calibration(self) -> Calibration | None:
        return None if self.calibrator is None else self.calibrator(self.graphs)

    def fp32(self, folder: Path, *, for_devices: bool) -> tuple[PrecisionVariant, VerificationReport]:
        targets: tuple[Target, ...] = ("cpu", "device") if for_devices else ("cpu",)
        variant = self._write(self.graphs, folder, "fp32", targets, self.weights, native=for_devices)
        if not for_devices:
            unpacked = opened(Folder(folder, variant), "fp32", CPU, native=False, packed=False)
            return variant, self._verified("fp32", variant, folder, verify_sources, unpacked)
        plain = opened(Folder(folder, variant), "fp32", CPU, native=False)
        report = self._verified("fp32", variant, folder, verify_fp32, plain)
        del plain  # its memory
        self.progress("verifying fp32 for devices")
        on_device = opened(Folder(folder, variant), "fp32", CPU_AS_DEVICE)
        more = verify_device(self._side, on_device, self.bounds)
        native = self._native_checks("fp32", variant, folder)
        return variant, self._passed("fp32", VerificationReport(checks=(*report.checks, *more, *native)))

    def fp16(self, folder: Path) -> tuple[PrecisionVariant, VerificationReport]:
        variant = write_variant(half_sources(self.graphs), folder, "fp16", targets=("device",))
        on_device = opened(Folder(folder, variant), "fp16", CPU_AS_DEVICE)
        report = verify_fp16(self._side, on_device, self.bounds, calibration=self._calibration)
        return variant, self._passed("fp16", report)

    def int8(self, folder: Path) -> tuple[PrecisionVariant, VerificationReport, Agreement | None]:
        calibration = self._calibration
        given = calibration is not None and calibration.given
        variant, agreement = self._quantized(folder, calibration)
        if calibration is not None and not given and agreement is not None and not agrees(agreement):
            with elsewhere_in(folder) as elsewhere:
                _, by_row = self._quantized(elsewhere, None)
            if by_row is not None and by_row.share > agreement.share + CALIBRATION_LOSS:
                calibration = replace(calibration, scales={})
                variant, agreement = self._quantized(folder, calibration)
        weights = [matrix for name in ("encoder", "decoder") for matrix in quantized_matrices(self.graphs[name])]
        rectified = frozenset() if given else rectified_keys(self.graphs[name] for name in ("encoder", "decoder"))
        verify = partial(verify_int8, weights=weights, rectified=rectified, calibration=calibration)
        self.progress("verifying int8")
        plain = opened(Folder(folder, variant), "int8", CPU, native=False)
        report = self._verified("int8", variant, folder, verify, plain)
        native = self._native_checks("int8", variant, folder, plain)
        return variant, self._passed("int8", VerificationReport(checks=(*report.checks, *native))), agreement

    def _quantized(self, folder: Path, calibration: Calibration | None) -> tuple[PrecisionVariant, Agreement | None]:
        """Write int8 graphs, and compare them, as they will serve, with the model; None if they do not run."""
        shutil.rmtree(folder / "int8", ignore_errors=True)  # of scales that agreed less
        using = calibration or Calibration(scales={}, start=0, sources=(), targets=())
        quantize = partial(quantize_graph, scales=using.scales, signed=using.given, multipliers=using.multipliers)
        quantized = {name: quantize(graph) for name, graph in self.graphs.items()}
        variant = self._write(quantized, folder, "int8", ("cpu",))
        self.progress("comparing int8 with fp32")
        alone = len(self.texts.batches()) == 1
        found = RuntimeSide(opened(Folder(folder, variant), "int8", CPU, alone=alone), checked=False)  # checked later
        try:
            return variant, measure_agreement(self._side, found, self.texts)
        except GraphFailedError:  # which verification reports
            return variant, None

    def _write(
        self,
        sources: Mapping[str, Graph],
        folder: Path,
        precision: str,
        targets: tuple[Target, ...],
        weights: WeightsFile | None = None,
        *,
        native: bool = True,
    ) -> PrecisionVariant:
        try:
            return write_variant(
                sources, folder, precision, targets=targets, shortlist=self.listed, native=native, weights=weights
            )
        except ValueError as error:
            if not self.listed:
                raise
            raise ExportError(f"{type(self.model).__name__} cannot have a shortlist: {error}") from error

    def _verified(
        self,
        precision: str,
        variant: PrecisionVariant,
        folder: Path,
        verify: Callable[[TorchSide, Graphs, InputBounds], VerificationReport],
        graphs: Graphs,
    ) -> VerificationReport:
        report = verify(self._side, graphs, self.bounds)
        graphs.unload("scorer")
        if self.listed:
            listed = opened(Folder(folder, variant), precision, CPU, listed=True, native=False, packed=graphs.packed)
            more = verify_shortlist(self.model, graphs, listed, self.bounds, precision)
            report = VerificationReport(checks=(*report.checks, *more))
        return self._passed(precision, report)

    def _passed(self, precision: str, report: VerificationReport) -> VerificationReport:
        """Return the report; raises `VerificationError` if a check failed, unless that is allowed."""
        return report if self.unverified else passed(precision, report)

    def _native_checks(
        self, precision: str, variant: PrecisionVariant, folder: Path, plain: Graphs | None = None
    ) -> tuple[Check, ...]:
        """Compare native graphs with the plain ones in int8, with the model in fp32."""
        if not variant.native:
            return ()
        self.progress(f"verifying {precision} with native operators")
        where = Folder(folder, variant)
        expected: Side = self._side if plain is None else RuntimeSide(plain)
        reference = fp32_reference(self.model) if plain is None else int8_reference(self.model)
        listed = opened(where, precision, CPU, listed=True) if self.listed else None
        native = opened(where, precision, CPU)
        return verify_native(expected, native, listed, self.bounds, precision, reference=reference)


@contextmanager
def elsewhere_in(folder: Path) -> Iterator[Path]:
    """Make a folder that is no part of the bundle in `folder`, and remove it in the end.

    A system's folder for temporary files may be in memory.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as name:
        yield Path(name)


def opened(
    where: Folder,
    precision: str,
    device: Device,
    *,
    listed: bool = False,
    native: bool = True,
    packed: bool = True,
    alone: bool = False,
) -> Graphs:
    """Load the graphs of a folder, after memory of earlier sessions has been given back.

    Args:
        alone: True to use all threads, because nothing else computes at the same time.

    Raises:
        ExportError: ONNX Runtime cannot load them.
    """
    give_back_memory(frozen=False)
    threads = torch.get_num_threads() if alone else threads_each()
    try:
        return Graphs(where, precision, device=device, threads=threads, listed=listed, native=native, packed=packed)
    except BundleError as error:
        raise ExportError(f"ONNX Runtime cannot load the {precision} graphs: {'; '.join(error.problems)}") from error


def passed(precision: str, report: VerificationReport) -> VerificationReport:
    """Return the report; raises `VerificationError` if a check failed."""
    failed = [check for check in report.checks if not check.passed]
    if failed:
        raise VerificationError(precision, failed)
    return report


def write_variants(
    model: nn.Module,
    graphs: Mapping[str, Graph],
    bounds: InputBounds,
    folder: Path,
    precisions: Sequence[str],
    *,
    calibrator: Callable[[Mapping[str, Graph]], Calibration] | None,
    listed: bool,
    unverified: bool,
    texts: SourceTexts,
    progress: Callable[[str], None],
    weights: WeightsFile | None = None,
) -> Written:
    """Write and verify the graphs of a model in several precisions.

    fp32 graphs are always verified: the others are made from them, and their limits are tight.

    Args:
        calibrator: finds activation scales; None for scales by row.
        listed: True to write graphs for shortlists too.
        unverified: True to write graphs that fail; the reports say so.
        texts: texts on which int8 is compared with fp32.
        weights: file `fp32/weights.bin` with the weights of `graphs`, in this folder or in one that is removed.

    Raises:
        ExportError: ONNX Runtime cannot load a graph, or the model cannot have a shortlist.
        VerificationError: a graph does not compute what the model computes.
    """
    writer = _Writer(model, graphs, bounds, calibrator, listed, unverified, texts, weights, progress)
    variants: dict[str, PrecisionVariant] = {}
    reports: dict[str, VerificationReport] = {}
    agreement: dict[str, Agreement] = {}
    progress("verifying fp32")
    if "fp32" in precisions:
        variants["fp32"], reports["fp32"] = writer.fp32(folder, for_devices=True)
        before: tuple[Check, ...] = ()
    else:
        with elsewhere_in(folder) as elsewhere:
            _, report = writer.fp32(elsewhere if weights is None else weights.path.parents[1], for_devices=False)
        before = tuple(
            check.model_copy(update={"name": f"before quantization: {check.name}"}) for check in report.checks
        )
    if "fp16" in precisions:
        progress("converting to fp16 and verifying it")
        variants["fp16"], report = writer.fp16(folder)
        reports["fp16"] = VerificationReport(checks=(*before, *report.checks))
    if "int8" in precisions:
        progress("quantizing to int8")
        variants["int8"], report, measured = writer.int8(folder)
        reports["int8"] = VerificationReport(checks=(*before, *report.checks))
        if measured is not None:
            agreement["int8"] = measured
    return Written(variants, reports, agreement)
