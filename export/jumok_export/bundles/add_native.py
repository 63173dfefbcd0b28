"""Add native graphs to a bundle that was exported without native kernels."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx

from jumok_export.bundles.recipe import make_native_graphs
from jumok_export.bundles.variants import Folder, opened, passed
from jumok_export.errors import ExportError
from jumok_export.graphs.graph import Graph
from jumok_export.verification.native import PREFIX, verify_native
from jumok_export.verification.runtime_side import RuntimeSide
from jumok_export.verification.samples import InputBounds
from jumok_serve.bundle.bundle import COMPANIONS, Bundle, write_bundle
from jumok_serve.manifest.manifest import (
    Check,
    GraphSpec,
    Manifest,
    ManifestDraft,
    PrecisionVariant,
    VerificationReport,
)
from jumok_serve.manifest.parts import NATIVE_GRAPHS
from jumok_serve.native import library
from jumok_serve.runtime.device import CPU


def add_native_graphs(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Write a bundle with native graphs, and compare them with the bundle's other graphs.

    Native graphs share the bundle's weights. Those that the bundle has already are replaced.

    Args:
        out: folder of the new bundle; may be the same with `overwrite`.

    Raises:
        BundleError: the bundle is damaged, or `out` exists.
        ExportError: there are no native kernels, or the new graphs do not load.
        VerificationError: the new graphs compute something else; no bundle is written.
    """
    if library() is None:
        raise ExportError("this machine has no native kernels; install a C++ compiler, then jumok again")
    bundle = Bundle.open(path)
    manifest = bundle.manifest

    def build(folder: Path) -> ManifestDraft:
        variants, reports = dict(manifest.precisions), dict(manifest.verification)
        _copy(bundle, folder)
        for precision, variant in variants.items():
            if variant.for_devices:
                continue
            progress(f"adding native graphs in {precision} and verifying them")
            variants[precision] = _added(folder, variant, precision)
            checks = _verified(Folder(folder, variants[precision]), precision, manifest)
            if precision in reports:
                before = (check for check in reports[precision].checks if not check.name.startswith(PREFIX))
                checks = (*before, *checks)
            reports[precision] = VerificationReport(checks=checks)
        fields = {name: getattr(manifest, name) for name in ManifestDraft.model_fields}
        return ManifestDraft(**{**fields, "precisions": variants, "verification": reports})

    return write_bundle(out, build, overwrite=overwrite)


def _copy(bundle: Bundle, folder: Path) -> None:
    """Copy a bundle's files, without its manifest and native graphs."""
    variants = bundle.manifest.precisions.values()
    native = {spec.file for variant in variants for name, spec in variant.graphs.items() if name in NATIVE_GRAPHS}
    documents = {name for name in COMPANIONS if (bundle.path / name).is_file()}
    for file in sorted({*bundle.manifest.files, *documents} - native):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.path / file, folder / file)


def _added(folder: Path, variant: PrecisionVariant, precision: str) -> PrecisionVariant:
    """Write the native graphs of a precision beside the others."""
    graphs = {
        name: Graph(onnx.load(folder / spec.file, load_external_data=False), spec.inputs, spec.outputs)
        for name, spec in variant.graphs.items()
        if name not in NATIVE_GRAPHS
    }
    specs = {name: variant.graphs[name] for name in graphs}
    for name, graph in make_native_graphs(graphs, precision).items():
        file = (folder / variant.weights).with_name(f"{name}.onnx")
        file.write_bytes(graph.model.SerializeToString(deterministic=True))
        specs[name] = GraphSpec(file=file.relative_to(folder).as_posix(), inputs=graph.inputs, outputs=graph.outputs)
    return PrecisionVariant(graphs=specs, weights=variant.weights)


def _verified(where: Folder, precision: str, manifest: Manifest) -> tuple[Check, ...]:
    if not where.only.native:
        return ()
    bounds = InputBounds(
        source_vocabulary=manifest.tokenizer.source_vocab_size,
        target_vocabulary=manifest.tokenizer.target_vocab_size,
        start=manifest.special_tokens.start,
        pad=manifest.special_tokens.pad,
        max_source_length=manifest.limits.max_source_length,
        max_target_length=manifest.limits.max_target_length,
    )
    plain = RuntimeSide(opened(where, precision, CPU, native=False))
    listed = opened(where, precision, CPU, listed=True) if where.only.listed else None
    report = manifest.verification.get(precision)
    recorded = {} if report is None else {check.name: check.limit for check in report.checks}
    checks = verify_native(plain, opened(where, precision, CPU), listed, bounds, precision, recorded=recorded)
    return passed(precision, VerificationReport(checks=checks)).checks
