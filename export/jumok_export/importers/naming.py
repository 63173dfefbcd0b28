"""Names of imported models."""

import re

from pydantic import TypeAdapter, ValidationError

from jumok_export.errors import ExportError
from jumok_serve.manifest.parts import Name

_NAME: TypeAdapter[str] = TypeAdapter(Name)


def model_name(wanted: str, *, given: bool) -> str:
    """Validate a given model name, or make one from a folder's name.

    Raises:
        ExportError: an invalid name.
    """
    name = wanted if given else re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).lstrip("._-")[:128]
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        raise ExportError(f"{wanted!r} cannot be a model's name: use letters, digits, '.', '_' and '-'") from error
