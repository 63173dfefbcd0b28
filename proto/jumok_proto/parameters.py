"""Parameters of Python methods, by the fields of requests that they fill."""

from collections.abc import Iterator
from contextlib import contextmanager

from jumok_proto.errors import JumokError

_PARAMETERS = {
    "contents": "texts",
    "content": "text",
    "target_prefixes": "target_prefix",
    "dictionaries[0].tsv": "entries",
    "glossary.stored": "stored_glossary",
    "source_language_code": "source_language",
    "target_language_code": "target_language",
}


def parameter_name(field: str) -> str:
    """Give the parameter that fills a field: ``texts[3]`` for ``contents[3]``."""
    if field in _PARAMETERS:
        return _PARAMETERS[field]
    name, bracket, index = field.removeprefix("options.").partition("[")
    return f"{_PARAMETERS.get(name, name)}{bracket}{index}"


def name_parameter(error: JumokError) -> None:
    """Replace the field by the parameter in an error's message; ``field`` itself stays."""
    message = str(error)
    if error.field and error.field in message:
        error.args = (message.replace(error.field, parameter_name(error.field)),)


@contextmanager
def naming_parameters() -> Iterator[None]:
    """Name parameters instead of fields in the messages of errors."""
    try:
        yield
    except JumokError as error:
        name_parameter(error)
        raise
