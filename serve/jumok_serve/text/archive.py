"""ZIP archives: entries that are read within bounds, and copies of an archive with some entries changed."""

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from jumok_proto.errors import InvalidArgumentError

MAX_ENTRIES: Final = 10_000
MAX_SIZE: Final = 16 * 2**20
"""Uncompressed bytes of an entry that is read."""
MAX_RATIO: Final = 200
"""Uncompressed bytes for each compressed byte of an entry that is read, beyond `FREE_BYTES`."""
FREE_BYTES: Final = 2**20
INFLATED: Final = 2**16
"""Most bytes that are uncompressed at once."""
HEAD: Final = 2**13
"""Bytes at the beginning of an entry by which its kind is known."""

STORED, DEFLATED = 0, 8
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_RECORD: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_LOCATOR: Final = struct.Struct("<4sLQL")
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_ENCRYPTED, _SIZES_AFTER, _UTF_8 = 0x41, 0x8, 0x800
"""Flags of an entry: it is encrypted, its sizes stand after it, its name is UTF-8."""
_UNIX, _LINK = 3, 0xA
"""System of a directory's record, and the kind of a symbolic link in the mode of its file."""
_LARGE: Final = 0xFFFFFFFF
"""Value of a field whose value stands among the extra fields, with 64 bits."""
_LARGE_FIELD: Final = 1
_OUTSIDE: Final = re.compile(r"[/\\]|[A-Za-z]:|(?:.*[/\\])?\.\.(?:[/\\]|\Z)", re.DOTALL)


def refuse(problem: str) -> NoReturn:
    """Raise the error of a bad archive; the problem is the rest of a sentence, with the way out."""
    raise InvalidArgumentError(f"file: {problem}", field="file")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an archive.

    Attributes:
        record: index of its record in the directory.
        start, end: indices of its bytes, with the header before them and what stands after them.
        content: index of the compressed bytes.
        packed, size: number of bytes, compressed and uncompressed.
    """

    name: str
    method: int
    record: int
    start: int
    end: int
    content: int
    packed: int
    size: int
    crc: int


class Archive:
    """An archive in memory.

    Attributes:
        data: its bytes.
        entries: its entries, in the order of their bytes.

    Raises:
        InvalidArgumentError: the bytes are no archive, or one that is refused.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            self.end, self.directory, count = _end_of(data)
            self.entries = self._read(count)
        except InvalidArgumentError:
            raise
        except (struct.error, ValueError):
            damaged = True
        else:
            damaged = False
        if damaged:
            refuse("it is no whole ZIP archive, which this format is: give a file that its program opens")

    def _read(self, count: int) -> list[Entry]:
        """Read the directory."""
        entries, place = dict[str, Entry](), self.directory
        for _ in range(count):
            entry, place = self._entry(place)
            if entries.setdefault(entry.name, entry) is not entry:
                refuse(f"the entry {_shown(entry.name)} is there twice: save the file again in its program")
        if place > self.end:
            raise ValueError
        ordered = sorted(entries.values(), key=lambda entry: entry.start)
        ends = [*(entry.start for entry in ordered[1:]), self.directory]
        return [self._bounded(entry, end) for entry, end in zip(ordered, ends, strict=False)]

    def _entry(self, place: int) -> tuple[Entry, int]:
        """Read a record of the directory; returns the entry, and the index after the record."""
        fields = _RECORD.unpack_from(self.data, place)
        mark, system, _, flags, method, _, _, crc, packed, size, name_size, extra_size, comment_size = fields[:13]
        *_, attributes, start = fields
        name_end = place + _RECORD.size + name_size
        written = self.data[name_end - name_size : name_end]
        name = written.decode("utf-8" if flags & _UTF_8 else "cp437")
        if mark != b"PK\1\2" or not name or "\0" in name:
            raise ValueError
        values = [size, packed, start]
        for kind, extra in _extras(self.data[name_end : name_end + extra_size]):
            if kind == _LARGE_FIELD:
                large = iter(struct.unpack_from(f"<{len(extra) // 8}Q", extra))
                values = [next(large, _LARGE) if value == _LARGE else value for value in values]
        if _OUTSIDE.match(name):
            refuse(f"the entry {_shown(name)} leads out of the archive: save the file again in its program")
        if flags & _ENCRYPTED:
            refuse(f"the entry {_shown(name)} is encrypted: remove the password")
        if system >> 8 == _UNIX and attributes >> 28 == _LINK:
            refuse(f"the entry {_shown(name)} is a link: put the file in its place")
        if method not in {STORED, DEFLATED}:
            refuse(f"the entry {_shown(name)} is compressed in an unknown way: save the file again in its program")
        size, packed, start = values
        entry = Entry(name, method, place, start, 0, 0, packed, size, crc)
        return entry, name_end + extra_size + comment_size

    def _bounded(self, entry: Entry, end: int) -> Entry:
        """Return an entry with the indices of its bytes, which no other entry has."""
        mark, *_, name_size, extra_size = _LOCAL.unpack_from(self.data, entry.start)
        name, of_record = entry.start + _LOCAL.size, entry.record + _RECORD.size
        content = name + name_size + extra_size
        same_name = self.data[name : name + name_size] == self.data[of_record : of_record + name_size]
        if mark != b"PK\3\4" or not same_name or content + entry.packed > end:
            raise ValueError
        return replace(entry, end=end, content=content)

    def inflated(self, entry: Entry, most: int = MAX_SIZE) -> Iterator[bytes]:
        """Yield the uncompressed bytes of an entry; raises InvalidArgumentError for too many, and wrong ones."""
        if entry.size > most:
            refuse(f"{_shown(entry.name)} has {entry.size} bytes, at most {most} are allowed: split the file")
        if entry.size > FREE_BYTES + MAX_RATIO * entry.packed:
            refuse(f"{_shown(entry.name)} has more than {MAX_RATIO} times its compressed bytes: split the file")
        size = crc = 0
        try:
            for part in self._parts(entry):
                size, crc = size + len(part), zlib.crc32(part, crc)
                if size > entry.size:
                    break
                yield part
        except zlib.error:
            size = -1
        if (size, crc) != (entry.size, entry.crc):
            refuse(f"{_shown(entry.name)} is damaged: give a file that its program opens")

    def head(self, entry: Entry) -> bytes:
        """Return the first uncompressed bytes of an entry; none if it is damaged."""
        packed = self.data[entry.content : entry.content + min(entry.packed, HEAD)]
        try:
            return packed if entry.method == STORED else zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, HEAD)
        except zlib.error:
            return b""

    def _parts(self, entry: Entry) -> Iterator[bytes]:
        inflate, end = zlib.decompressobj(-zlib.MAX_WBITS), entry.content + entry.packed
        for start in range(entry.content, end, INFLATED):
            rest = self.data[start : min(start + INFLATED, end)]
            if entry.method == STORED:
                yield rest
            while entry.method == DEFLATED and rest and not inflate.eof:
                yield inflate.decompress(rest, INFLATED)
                rest = inflate.unconsumed_tail
        while part := inflate.decompress(inflate.unconsumed_tail, INFLATED):
            yield part


class Packed:
    """The new content of an entry, compressed as it comes."""

    def __init__(self, method: int) -> None:
        self._deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS) if method == DEFLATED else None
        self.data = bytearray()
        self.size = self.crc = 0

    def add(self, content: bytes) -> None:
        """Add bytes."""
        self.size, self.crc = self.size + len(content), zlib.crc32(content, self.crc)
        self.data += self._deflate.compress(content) if self._deflate else content

    def finish(self) -> None:
        """Compress what is left."""
        self.data += self._deflate.flush() if self._deflate else b""


class ArchiveCopy:
    """Writes an archive again, entry by entry; an entry that does not change keeps its bytes."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._records = list[tuple[Entry, int, Packed | None]]()  # with the new starts
        self._done = 0  # bytes of the archive
        self._written = 0

    def until(self, name: str | None) -> Iterator[bytes]:
        """Yield the entries before one, as they are; None: all that are left."""
        for entry in self._archive.entries[len(self._records) :]:
            if entry.name == name:
                return
            self._records.append((entry, self._written + entry.start - self._done, None))
            yield self._added(self._archive.data[self._done : entry.end], entry)

    def change(self, packed: Packed) -> bytes:
        """Return the next entry with another content."""
        entry, data = self._archive.entries[len(self._records)], self._archive.data
        before = data[self._done : entry.start]
        fields = list(_LOCAL.unpack_from(data, entry.start))
        name_end = entry.start + _LOCAL.size + fields[9]
        extra = _without_large(data[name_end : entry.content])
        fields[2] &= ~_SIZES_AFTER
        fields[6:] = packed.crc, len(packed.data), packed.size, fields[9], len(extra)
        name = data[entry.start + _LOCAL.size : name_end]
        self._records.append((entry, self._written + len(before), packed))
        return self._added(b"".join((before, _LOCAL.pack(*fields), name, extra, packed.data)), entry)

    def _added(self, written: bytes, entry: Entry) -> bytes:
        self._done = entry.end
        self._written += len(written)
        return written

    def ending(self) -> bytes:
        """Return all after the entries."""
        archive = self._archive
        if not any(packed for _, _, packed in self._records):
            return archive.data[self._done :]
        records = {entry.record: self._record(entry, start, packed) for entry, start, packed in self._records}
        directory = b"".join(records[record] for record in sorted(records))
        fields = list(_END.unpack_from(archive.data, archive.end))
        fields[3:7] = len(records), len(records), len(directory), self._written
        return directory + _END.pack(*fields) + archive.data[archive.end + _END.size :]

    def _record(self, entry: Entry, start: int, packed: Packed | None) -> bytes:
        """Return a record of the directory with the places and sizes of now."""
        data = self._archive.data
        fields = list(_RECORD.unpack_from(data, entry.record))
        name, extra, comment = fields[10:13]
        name_end = entry.record + _RECORD.size + name
        kept = _without_large(data[name_end : name_end + extra])
        fields[8:10], fields[11], fields[16] = (entry.packed, entry.size), len(kept), start
        if packed is not None:
            fields[3] &= ~_SIZES_AFTER
            fields[7:10] = packed.crc, len(packed.data), packed.size
        before, after = data[name_end - name : name_end], data[name_end + extra : name_end + extra + comment]
        return b"".join((_RECORD.pack(*fields), before, kept, after))


def _end_of(data: bytes) -> tuple[int, int, int]:
    """Return the index of the end record, that of the directory, and the number of entries."""
    end = data.rfind(b"PK\5\6", max(0, len(data) - _END.size - 0xFFFF))
    mark, disk, first_disk, _, count, size, directory, _ = _END.unpack_from(data, end) if end >= 0 else _END.unpack(b"")
    after = end
    if data[end - _LOCATOR.size : end].startswith(b"PK\6\7"):
        _, _, after, _ = _LOCATOR.unpack_from(data, end - _LOCATOR.size)
        mark, *_, disk, first_disk, _, count, size, directory = _END_64.unpack_from(data, after)
        if mark != b"PK\6\6":
            raise ValueError
    if count > MAX_ENTRIES:
        refuse(f"it has {count} entries, at most {MAX_ENTRIES} are allowed: split the file")
    if disk or first_disk or directory + size != after:
        raise ValueError
    return end, directory, count


def _extras(written: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of the extra fields."""
    place = 0
    while place + 4 <= len(written):
        kind, size = struct.unpack_from("<2H", written, place)
        yield kind, written[place + 4 : place + 4 + size]
        place += 4 + size


def _without_large(written: bytes) -> bytes:
    """Return extra fields without those of 64 bits."""
    fields: Sequence[tuple[int, bytes]] = list(_extras(written))
    if all(kind != _LARGE_FIELD for kind, _ in fields):
        return written
    return b"".join(struct.pack("<2H", kind, len(field)) + field for kind, field in fields if kind != _LARGE_FIELD)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:60]}...")
