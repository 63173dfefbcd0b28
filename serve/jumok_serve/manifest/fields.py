"""Base class of the manifest's parts, and the types of their fields."""

from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

MANIFEST_FILE: Final = "manifest.json"


def _check_relative_path(path: str) -> str:
    parts = path.split("/")
    if PurePosixPath(path).is_absolute() or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path!r} is not a plain path inside the bundle such as 'int8/encoder.onnx'")
    if "\\" in path or not path.isprintable():
        raise ValueError(f"{path!r} holds a backslash or an unprintable character")
    if path == MANIFEST_FILE:
        raise ValueError(f"{MANIFEST_FILE} cannot be a file of the bundle: it is the list of files")
    return path


Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
RelativePath: TypeAlias = Annotated[str, AfterValidator(_check_relative_path)]
LanguageTag: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")]
Symbol: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
Sha256: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TokenId: TypeAlias = Annotated[int, Field(ge=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """Base of every part of the manifest: immutable, no silent conversion, no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
