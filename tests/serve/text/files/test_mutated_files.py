"""Mutated files of each format: read or refused by name, within their time and memory, and only texts change."""

import random

import pytest

from jumok_proto.file_formats import FILE_FORMATS
from tests.faults.guided.file_readers import Files
from tests.support.files import THOROUGH

FILES = 10_000 if THOROUGH else 150


def changed(data: bytes, source: random.Random) -> bytes:
    """Change bytes of a file."""
    made = bytearray(data)
    for _ in range(source.choice((1, 2, 8))):
        place = source.randrange(len(made) + 1)
        made[place : place + source.randrange(4)] = source.randbytes(source.randrange(4))
    return bytes(made)


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_mutated_files_are_read_or_refused(name: str) -> None:
    reader, source = Files(name), random.Random(1)
    corpus = [*reader.seeds()]
    most = 2 * max(map(len, corpus))
    for data in corpus:
        assert reader.read(data)
    for _ in range(FILES):
        data = source.choice(corpus)
        made = reader.mutate(data, source)
        made = changed(data, source) if made is None else made
        if reader.read(made) and len(made) <= most:  # changes of a file that is refused would mostly be refused too
            corpus.append(made)
