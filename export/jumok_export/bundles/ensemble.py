"""Make one bundle of several: an ensemble, which averages their models."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx

from jumok_export.bundles.export import USUAL_PARAMETERS, describe_provenance
from jumok_export.bundles.recipe import write_variant
from jumok_export.bundles.resources import useful_threads
from jumok_export.bundles.source_texts import greedy_search, random_texts, some_direction
from jumok_export.bundles.variants import Folder, opened, passed
from jumok_export.errors import ExportError
from jumok_export.graphs.ensemble import join_models
from jumok_export.graphs.fuse_selection import remove_selection
from jumok_export.graphs.graph import Graph, sort_nodes, with_inner
from jumok_export.graphs.weights import is_external
from jumok_export.verification.agreement import SENTENCES, TOGETHER, SourceTexts, measure_agreement
from jumok_export.verification.ensemble import verify_ensemble, with_recorded
from jumok_export.verification.fp32 import verify_device
from jumok_export.verification.native import verify_native
from jumok_export.verification.runtime_side import RuntimeSide
from jumok_export.verification.samples import InputBounds
from jumok_export.verification.sides import PartsSide
from jumok_serve.bundle.bundle import COMPANIONS, Bundle, manifest_bytes, write_bundle
from jumok_serve.manifest.manifest import (
    Agreement,
    Architecture,
    Limits,
    Manifest,
    ManifestDraft,
    PrecisionVariant,
    VerificationReport,
)
from jumok_serve.manifest.parts import AlignmentHeads, EnsemblePart, Target
from jumok_serve.runtime.device import CPU, CPU_AS_DEVICE

_SOURCES = ("encoder", "decoder", "scorer", "aligner")
"""Graphs that are joined; the others are made from the joined ones, as in an export."""


def make_ensemble(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: str = "1",
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Write the ensemble of some bundles as one bundle, and compare it with them.

    Every step runs the decoders of all parts. The ensemble takes the mean of their log-probabilities, normalized again
    to probabilities, as all searches, scores and samples expect: a normalized geometric mean of the parts'
    probabilities. Attention is the mean of the parts' attention.

    Graphs are joined before the selection and before native operators are fused, and then pass through the same steps
    as those of an export: there are native graphs wherever an export would make some. Precisions are those that all
    parts have. Decoding defaults are those of the first part. There is no shortlist.

    Args:
        paths: folders of two bundles or more, of one vocabulary; a bundle may be among them more than once.
        out: folder of the new bundle.
        name: the model's name; None: the folder's.
        version: version of the model.
        overwrite: True to replace a bundle.
        progress: receives progress messages.

    Raises:
        BundleError: a part is damaged, or `out` exists.
        ExportError: the parts differ in tokenizer, special tokens or languages, have no precision in common, or their
            graphs cannot be joined.
        VerificationError: the new graphs compute something else than the mean of the parts; no bundle is written.
    """
    if len(paths) < 2:
        raise ExportError(f"an ensemble needs two bundles or more, got {len(paths)}")
    bundles = [Bundle.open(path) for path in paths]
    _check_alike(bundles)
    manifests = [bundle.manifest for bundle in bundles]
    first = manifests[0]
    precisions = [each for each in first.precisions if all(each in manifest.precisions for manifest in manifests)]
    if not precisions:
        had = "; ".join(f"{bundle.path} has {', '.join(bundle.manifest.precisions)}" for bundle in bundles)
        raise ExportError(f"the bundles have no precision in common: {had}")
    limits = Limits(
        max_source_length=min(manifest.limits.max_source_length for manifest in manifests),
        max_target_length=min(manifest.limits.max_target_length for manifest in manifests),
    )
    parameters = [manifest.architecture.parameters for manifest in manifests]
    known = [number for number in parameters if number is not None]
    total = sum(known) if len(known) == len(bundles) else None
    bounds = InputBounds(
        source_vocabulary=first.tokenizer.source_vocab_size,
        target_vocabulary=first.tokenizer.target_vocab_size,
        start=first.special_tokens.start,
        pad=first.special_tokens.pad,
        max_source_length=limits.max_source_length,
        max_target_length=limits.max_target_length,
        share=min(1.0, USUAL_PARAMETERS / max(1, total or 0)),
    )

    def build(folder: Path) -> ManifestDraft:
        _copy_files(bundles, folder, progress)
        written: dict[str, PrecisionVariant] = {}
        reports: dict[str, VerificationReport] = {}
        with useful_threads(total or 0):
            for precision in precisions:
                progress(f"joining the graphs of {len(bundles)} bundles in {precision} and verifying them")
                written[precision] = _write(bundles, folder, precision)
                reports[precision] = _verified(bundles, Folder(folder, written[precision]), precision, bounds)
            agreement = _agreement(folder, written, bundles[0], limits, bounds)
        return ManifestDraft(
            name=name or Path(os.path.abspath(out)).name,
            version=version,
            architecture=Architecture(family="ensemble", sizes={"parts": len(bundles)}, parameters=total),
            languages=first.languages,
            special_tokens=first.special_tokens,
            limits=limits,
            generation=first.generation.model_copy(
                update={"max_length": min(first.generation.max_length, limits.max_target_length)}
            ),
            tokenizer=first.tokenizer,
            precisions=written,
            alignment=_alignment(manifests, written),
            verification=reports,
            agreement=agreement,
            provenance=describe_provenance(parts=tuple(map(_part, bundles))),
        )

    return write_bundle(out, build, overwrite=overwrite)


def _alignment(manifests: Sequence[Manifest], written: Mapping[str, PrecisionVariant]) -> AlignmentHeads | None:
    """Heads that align tokens in all parts; None if they differ. Their error rate in the ensemble is not known."""
    heads = {None if manifest.alignment is None else manifest.alignment.heads for manifest in manifests}
    common = manifests[0].alignment
    if common is None or len(heads) > 1:
        return None
    found = AlignmentHeads(heads=common.heads, origin=common.origin)
    sizes = {precision: variant.attention() for precision, variant in written.items()}
    return None if any(found.problems(sizes)) else found


def _part(bundle: Bundle) -> EnsemblePart:
    manifest = bundle.manifest
    digest = sha256(manifest_bytes(bundle.path)).hexdigest()
    return EnsemblePart(name=manifest.name, version=manifest.version, manifest_sha256=digest)


def _check_alike(bundles: Sequence[Bundle]) -> None:
    """Raise ``ExportError`` unless all have one tokenizer, the same special tokens and the same languages."""
    first = bundles[0]
    wanted = dict(_identity(first.manifest))
    for other in bundles[1:]:
        found = dict(_identity(other.manifest))
        differences = [
            f"\n  - {field}: {wanted.get(field, 'none')} and {found.get(field, 'none')}"
            for field in dict.fromkeys([*wanted, *found])
            if wanted.get(field) != found.get(field)
        ]
        if differences:
            raise ExportError(
                f"{first.path} and {other.path} cannot be one ensemble, because their vocabularies differ:"
                f"{''.join(differences)}\nhint: train the models with one configuration, and change only "
                "training.seed"
            )


def _identity(manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield all that the parts of an ensemble have in common, by field."""
    tokenizer = manifest.tokenizer
    for field, value in tokenizer.model_dump(mode="json").items():
        named = value in tokenizer.files if isinstance(value, str) else False
        yield f"tokenizer.{field}", f"a file of SHA-256 {manifest.files[value].sha256[:16]}" if named else value
    for part in ("special_tokens", "languages"):
        for field, value in getattr(manifest, part).model_dump(mode="json").items():
            yield f"{part}.{field}", value


def _copy_files(bundles: Sequence[Bundle], folder: Path, progress: Callable[[str], None]) -> None:
    """Copy the tokenizer, and documents that all parts have alike, such as a licence."""
    first = bundles[0]
    for file in first.manifest.tokenizer.files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(first.path / file, folder / file)
    for file in sorted(COMPANIONS):
        texts = {path.read_bytes() for bundle in bundles if (path := bundle.path / file).is_file()}
        if len(texts) == 1 and all((bundle.path / file).is_file() for bundle in bundles):
            shutil.copyfile(first.path / file, folder / file)
        elif texts:
            progress(f"{file} is left out, because it is not the same in all bundles")


def _write(bundles: Sequence[Bundle], folder: Path, precision: str) -> PrecisionVariant:
    try:
        joined = join_models([_sources(bundle, precision) for bundle in bundles])
    except ValueError as error:
        names = ", ".join(str(bundle.path) for bundle in bundles)
        raise ExportError(f"{names} cannot be one ensemble in {precision}: {error}") from error
    variants = [bundle.variant(precision) for bundle in bundles]
    targets: tuple[Target, ...] = ("cpu",)
    if any(variant.for_devices for variant in variants):
        targets = ("device",)
    elif all("decoder_device" in variant.graphs for variant in variants):
        targets = ("cpu", "device")
    return write_variant(joined, folder, precision, targets=targets)


def _sources(bundle: Bundle, precision: str) -> dict[str, Graph]:
    """A bundle's graphs as they were before the selection, by role."""
    variant = bundle.variant(precision)
    sources = {}
    for role in _SOURCES:
        if role not in variant.graphs:
            continue
        spec = variant.graphs[role]
        model = onnx.load(bundle.path / spec.file, load_external_data=False)
        weights = (bundle.path / variant.weights).resolve()
        for graph in with_inner(model.graph):
            for tensor in filter(is_external, graph.initializer):
                (location,) = (entry for entry in tensor.external_data if entry.key == "location")
                if (bundle.path / spec.file).parent.joinpath(location.value).resolve() != weights:
                    raise ValueError(f"{spec.file} of {bundle.path} reads {location.value!r} beside its weights")
                location.value = str(weights)
        sort_nodes(model.graph)
        finished = Graph(model, spec.inputs, spec.outputs)
        sources[role] = remove_selection(finished) if role == "decoder" else finished
    return sources


def _verified(bundles: Sequence[Bundle], where: Folder, precision: str, bounds: InputBounds) -> VerificationReport:
    device = CPU_AS_DEVICE if where.only.for_devices else CPU
    parts = _parts(bundles, precision)
    recorded = _recorded(bundles, precision)
    checks = verify_ensemble(parts, opened(where, precision, device, native=False), bounds, precision, recorded)
    if "decoder_device" in where.only.graphs:
        checks += with_recorded(verify_device(parts, opened(where, precision, CPU_AS_DEVICE), bounds), recorded)
    if where.only.native:
        checks += verify_native(parts, opened(where, precision, CPU), None, bounds, precision, recorded=recorded)
    return passed(precision, VerificationReport(checks=checks))


def _parts(bundles: Sequence[Bundle], precision: str) -> PartsSide:
    variants = [bundle.variant(precision) for bundle in bundles]
    sides = [
        RuntimeSide(
            opened(Folder(bundle.path, variant), precision, CPU_AS_DEVICE if variant.for_devices else CPU, native=False)
        )
        for bundle, variant in zip(bundles, variants, strict=True)
    ]
    return PartsSide(sides, aligns=all("aligner" in variant.graphs for variant in variants))


def _recorded(bundles: Sequence[Bundle], precision: str) -> Mapping[str, float]:
    """The highest limit of each check in the parts' reports."""
    limits: dict[str, float] = {}
    for bundle in bundles:
        report = bundle.manifest.verification.get(precision)
        for check in () if report is None else report.checks:
            limits[check.name] = max(check.limit, limits.get(check.name, 0.0))
    return limits


def _agreement(
    folder: Path, written: Mapping[str, PrecisionVariant], first: Bundle, limits: Limits, bounds: InputBounds
) -> dict[str, Agreement]:
    """Agreement of the ensemble in int8 with the ensemble in fp32."""
    if not {"fp32", "int8"} <= written.keys():
        return {}
    exact, rounded = (
        RuntimeSide(opened(Folder(folder, written[precision]), precision, CPU)) for precision in ("fp32", "int8")
    )
    manifest = first.manifest
    direction = some_direction(manifest.languages)
    texts = SourceTexts(
        sources=random_texts(first.tokenizer, manifest.special_tokens, direction, limits),
        search=greedy_search(direction, manifest.special_tokens, manifest.generation, limits),
        pad=manifest.special_tokens.pad,
        described="random tokens",
        most=bounds.some(SENTENCES, least=TOGETHER),
    )
    return {"int8": measure_agreement(exact, rounded, texts)}
