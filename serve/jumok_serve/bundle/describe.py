"""Descriptions of a bundle, as text and as JSON: the output of ``jumok inspect``."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Manifest, ShortlistDescription

WIDTH = 100
MOST_PAIRS = 12
MAIN_SETTINGS = ("beam_size", "num_hypotheses", "length_penalty", "early_stopping", "max_length")
"""Generation settings that are shown even if they have their default."""


def as_json(bundle: Bundle) -> dict[str, Any]:
    """Return the manifest as JSON values, with sizes, verdicts and native graphs."""
    manifest = bundle.manifest
    return manifest.model_dump(mode="json") | {
        "path": str(bundle.path),
        "bytes": {precision: _precision_bytes(manifest, precision) for precision in manifest.precisions},
        "verified": {precision: report.passed for precision, report in manifest.verification.items()},
        "native_graphs": {precision: variant.native for precision, variant in manifest.precisions.items()},
    }


def describe(bundle: Bundle, *, whole: bool = True) -> str:
    """Return sections of aligned lines, at most 100 columns wide.

    Only a longer word makes a longer line.

    Args:
        whole: False to leave out graphs, checks, origin and files.
    """
    manifest = bundle.manifest
    sections = [
        _overview(bundle),
        _section("Precisions", _precisions(manifest, graphs=whole)),
        *([_section("Scores", _scores(manifest))] if whole or manifest.scores else []),
    ]
    if whole:
        sections += [
            _section("Verification", _verification(manifest)),
            _section("Made", _provenance(manifest)),
            _section("Files", _files(manifest)),
        ]
    # A bundle is untrusted: no escape sequence in its texts may reach the terminal.
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in "\n\n".join(sections))


def _overview(bundle: Bundle) -> str:
    manifest = bundle.manifest
    architecture, limits, generation = manifest.architecture, manifest.limits, manifest.generation
    sizes = _settings(architecture.sizes.items())
    tokenizer = manifest.tokenizer
    vocabulary = (
        f"{tokenizer.source_vocab_size:,} tokens, shared"
        if tokenizer.shared
        else f"{tokenizer.source_vocab_size:,} source and {tokenizer.target_vocab_size:,} target tokens"
    )
    rows = [
        ("languages", _languages(manifest.languages)),
        ("architecture", f"{architecture.family}{': ' if sizes else ''}{sizes}"),
        *_parts(manifest),
        ("parameters", "not stated" if architecture.parameters is None else f"{architecture.parameters:,}"),
        ("tokenizer", f"{tokenizer.kind}, {vocabulary}"),
        ("limits", f"source {limits.max_source_length} tokens, target {limits.max_target_length} tokens"),
        ("generation", _settings(_shown_settings(generation))),
        *([("shortlist", _shortlist(manifest.shortlist))] if manifest.shortlist else []),
        *([("alignment", str(manifest.alignment))] if manifest.alignment else []),
        ("path", str(bundle.path)),
    ]
    return f"{manifest.name} {manifest.version}\n" + "\n".join(_pairs(rows))


def _parts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield a row for each part of an ensemble."""
    for part in manifest.provenance.parts:
        yield "part", f"{part.name} {part.version} (manifest of SHA-256 {part.manifest_sha256[:16]})"


def _shortlist(described: ShortlistDescription) -> str:
    return (
        f"{described.source} to {described.target}: {described.best} tokens for each source token and the "
        f"{described.frequent} most frequent; {described.lexicon}"
    )


def _languages(languages: Languages) -> str:
    pairs = list(languages.all_pairs)
    default = f", by default {languages.default.source} to {languages.default.target}" if languages.default else ""
    if len(pairs) == 1:
        return f"{pairs[0][0]} to {pairs[0][1]}"
    if len(pairs) <= MOST_PAIRS:
        return "; ".join(f"{source} to {target}" for source, target in pairs) + default
    return f"{len(languages.sources)} source and {len(languages.targets)} target languages, {len(pairs)} pairs{default}"


def _shown_settings(generation: GenerationDefaults) -> Iterator[tuple[str, object]]:
    """Yield the main settings and those that differ from their default."""
    for name, field in GenerationDefaults.model_fields.items():
        value = getattr(generation, name)
        if name in MAIN_SETTINGS or value != field.default:
            yield name, value


def _precisions(manifest: Manifest, *, graphs: bool) -> Iterator[str]:
    rows = [("precision", "bytes", "weights", "native graphs", "verified")]
    for precision, variant in manifest.precisions.items():
        report = manifest.verification.get(precision)
        verdict = "not recorded" if report is None else "passed" if report.passed else "FAILED"
        native = "yes" if variant.native else "not for CUDA" if variant.for_devices else "no"
        rows.append((precision, f"{_precision_bytes(manifest, precision):,}", variant.weights, native, verdict))
    yield from _table(rows, numeric={1})
    if manifest.stored_precision is not None:
        yield from _wrapped("weights were imported in: ", manifest.stored_precision)
    for precision, agreement in manifest.agreement.items():
        yield from _wrapped(f"{precision} agrees with fp32 in ", str(agreement))
    for precision, variant in manifest.precisions.items() if graphs else ():
        yield from _wrapped(f"graphs of {precision}: ", ", ".join(variant.graphs))
    if any(native == "no" for _, _, _, native, _ in rows):
        yield "  Native graphs make decoding on a CPU faster. To add them, run:"
        yield "    jumok add-native BUNDLE --out NEW_BUNDLE"


def _scores(manifest: Manifest) -> Iterator[str]:
    if not manifest.scores:
        return
    rows = [("metric", "value", "precision", "beam", "dataset")]
    rows += [
        (score.metric, f"{score.value:.2f}", score.precision, str(score.beam_size), score.dataset)
        for score in manifest.scores
    ]
    yield from _table(rows, numeric={1, 3})
    signed = [(score.metric, score.signature) for score in manifest.scores if score.signature]
    for metric, signature in dict.fromkeys(signed):
        yield from _wrapped(f"signature of {metric}: ", signature)


def _verification(manifest: Manifest) -> Iterator[str]:
    if not manifest.verification:
        return
    rows = [("precision", "check", "cases", "worst", "limit", "result")]
    for precision, report in manifest.verification.items():
        for check in report.checks:
            verdict = "passed" if check.passed else "FAILED"
            limits = f"{check.worst:.3g}", f"{check.limit:.3g}"
            rows.append((precision, check.name, f"{check.cases:,}", *limits, verdict))
    yield from _table(rows, numeric={2, 3, 4})
    for precision, report in manifest.verification.items():
        for check in report.checks:
            if check.detail:
                yield from _wrapped(f"{precision} {check.name}: ", check.detail)


def _provenance(manifest: Manifest) -> Iterator[str]:
    made = manifest.provenance
    rows = [("created", made.created.isoformat(sep=" ", timespec="seconds")), ("command", made.command)]
    rows.append(("with", ", ".join(f"{package} {version}" for package, version in made.versions.items())))
    if made.training_data is not None:
        rows.append(("data", made.training_data.description))
        rows += [("", f"{name} (SHA-256 {sha256[:16]})") for name, sha256 in made.training_data.files.items()]
    if made.checkpoint is not None:
        by, commit = made.checkpoint.transformers_version, made.checkpoint.commit
        origin = f"{f', commit {commit[:12]}' if commit else ''}{f', saved by transformers {by}' if by else ''}"
        rows.append(("checkpoint", f"{made.checkpoint.name}{origin}"))
        rows += [("", f"{name} (SHA-256 {sha256[:16]})") for name, sha256 in made.checkpoint.weights.items()]
    rows.append(("notes", made.notes))
    yield from _pairs(row for row in rows if row[1])
    if made.configuration:
        yield "  configuration"
        yield from textwrap.indent(made.configuration.strip("\n"), "    ").splitlines()


def _files(manifest: Manifest) -> Iterator[str]:
    rows = [("file", "bytes", "SHA-256 begins")]
    rows += [(file, f"{entry.size:,}", entry.sha256[:16]) for file, entry in manifest.files.items()]
    return _table(rows, numeric={1})


def _precision_bytes(manifest: Manifest, precision: str) -> int:
    return sum(manifest.files[file].size for file in manifest.precisions[precision].files)


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *lines]) if (lines := list(lines)) else f"{title}\n  none recorded"


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in rows:
        yield from _wrapped(f"{name:<14}", value)


def _wrapped(label: str, text: str) -> list[str]:
    """Wrap ``label text`` with an indent; words stay whole, to be copied."""
    indent = "  " + " " * len(label)
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {label}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(rows: Sequence[tuple[str, ...]], *, numeric: set[int]) -> Iterator[str]:
    """Align rows of cells, the first of them headings; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _settings(values: Iterable[tuple[str, object]]) -> str:
    """Join ``name=value`` pairs, each without spaces, so that none is broken."""
    return ", ".join(f"{name}={_setting(value)}" for name, value in values)


def _setting(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_setting, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
