"""Origin of a bundle: its training data, checkpoint and parts."""

from pydantic import AwareDatetime, Field

from jumok_serve.manifest.fields import Name, Part, Sha256


class TrainingData(Part):
    """Training data of a model: description and SHA-256 by file name."""

    description: str
    files: dict[str, Sha256] = Field(default_factory=dict)


class SourceCheckpoint(Part):
    """Imported checkpoint: folder name, and SHA-256 by weights file name.

    ``transformers_version`` is the version that wrote it, and ``commit`` that of its repository, if known.
    """

    name: str
    weights: dict[str, Sha256]
    transformers_version: str | None = None
    commit: str | None = None


class EnsemblePart(Part):
    """One of the bundles of an ensemble; ``manifest_sha256`` is the SHA-256 of its manifest."""

    name: Name
    version: Name
    manifest_sha256: Sha256


class Provenance(Part):
    """Origin of the bundle: time, command, package versions, data and configuration.

    ``parts`` are the bundles of an ensemble; other bundles have none.
    """

    created: AwareDatetime
    command: str
    versions: dict[str, str] = Field(default_factory=dict)
    training_data: TrainingData | None = None
    checkpoint: SourceCheckpoint | None = None
    configuration: str = ""
    notes: str = ""
    parts: tuple[EnsemblePart, ...] = ()
