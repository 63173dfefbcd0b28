"""ZIP archives: entries that are read within bounds, and copies of an archive with some entries changed."""

import io
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NoReturn, TypeAlias
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

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

Entry: TypeAlias = ZipInfo
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_RECORD: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_ENCRYPTED, _SIZES_AFTER = 0x41, 0x8
"""Flags of an entry: it is encrypted, its sizes stand after it."""
_UNIX, _LINK = 3, 0xA
"""System of a directory's record, and the kind of a symbolic link in the mode of its file."""
_LARGE_FIELD: Final = 1
"""Kind of the extra field with sizes of 64 bits."""
_OUTSIDE: Final = re.compile(r"[/\\]|[A-Za-z]:|(?:.*[/\\])?\.\.(?:[/\\]|\Z)", re.DOTALL)
_ERRORS: Final = (BadZipFile, NotImplementedError, EOFError, OverflowError, ValueError, struct.error, zlib.error)
"""What reading of damaged bytes raises."""


def refuse(problem: str) -> NoReturn:
    """Raise the error of a bad archive; the problem is the rest of a sentence, with the way out."""
    raise InvalidArgumentError(f"file: {problem}", field="file")


def _shown(entry: Entry) -> str:
    name = entry.filename
    return repr(name if len(name) <= 60 else f"{name[:60]}...")


def _refuse_damaged(entry: Entry) -> NoReturn:
    refuse(f"{_shown(entry)} is damaged: give a file that its program opens")


class Archive:
    """An archive in memory.

    Attributes:
        data: its bytes.
        entries: its entries, in the order of their bytes.
        ends: index after the bytes of each.
        records: its entries, in the order of the directory.
        directory: index of the directory.

    Raises:
        InvalidArgumentError: the bytes are no archive, or one that is refused.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        if (count := data.count(b"PK\1\2")) > MAX_ENTRIES:
            refuse(f"it has {count} entries, at most {MAX_ENTRIES} are allowed: split the file")
        try:
            self._file = ZipFile(io.BytesIO(data))
            self.records, self.directory = self._file.filelist, self._file.start_dir
            self.entries = sorted(self.records, key=lambda entry: entry.header_offset)
            self.ends = [*(entry.header_offset for entry in self.entries[1:]), self.directory][: len(self.entries)]
            is_whole = all(map(self._is_within, self.entries, self.ends))
        except _ERRORS:
            is_whole = False
        if not is_whole:
            refuse("it is no whole ZIP archive, which this format is: give a file that its program opens")
        names = set[str]()
        for entry in self.records:
            if entry.filename in names:
                refuse(f"the entry {_shown(entry)} is there twice: save the file again in its program")
            names.add(entry.filename)
            if _OUTSIDE.match(entry.filename):
                refuse(f"the entry {_shown(entry)} leads out of the archive: save the file again in its program")
            if entry.flag_bits & _ENCRYPTED:
                refuse(f"the entry {_shown(entry)} is encrypted: remove the password")
            if entry.create_system == _UNIX and entry.external_attr >> 28 == _LINK:
                refuse(f"the entry {_shown(entry)} is a link: put the file in its place")
            if entry.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
                refuse(f"the entry {_shown(entry)} is compressed in an unknown way: save the file again in its program")

    def _is_within(self, entry: Entry, end: int) -> bool:
        """True if no other entry has a byte of an entry."""
        mark, *_, name, extra = _LOCAL.unpack_from(self.data, entry.header_offset)
        after = entry.header_offset + _LOCAL.size + name + extra + entry.compress_size
        return entry.header_offset >= 0 and mark == b"PK\3\4" and after <= end

    def inflated(self, entry: Entry, most: int = MAX_SIZE) -> Iterator[bytes]:
        """Yield the uncompressed bytes of an entry; raises InvalidArgumentError for too many, and wrong ones."""
        if entry.file_size > most:
            refuse(f"{_shown(entry)} has {entry.file_size} bytes, at most {most} are allowed: split the file")
        if entry.file_size > FREE_BYTES + MAX_RATIO * entry.compress_size:
            refuse(f"{_shown(entry)} has more than {MAX_RATIO} times its compressed bytes: split the file")
        size = 0
        try:
            with self._file.open(entry) as opened:
                while part := opened.read(INFLATED):
                    size += len(part)
                    yield part
        except _ERRORS:
            size = -1
        if size != entry.file_size:
            _refuse_damaged(entry)

    def head(self, entry: Entry) -> bytes:
        """Return the first uncompressed bytes of an entry; raises InvalidArgumentError if it is damaged."""
        with suppress(*_ERRORS), self._file.open(entry) as opened:
            return opened.read(HEAD)
        _refuse_damaged(entry)


class ArchiveCopy:
    """Writes an archive again; an entry whose content does not change keeps its bytes.

    Attributes:
        part: name of the entry that has begun.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._done = 0  # bytes of the archive
        self._changes = dict[str, tuple[int, int, int, int]]()  # CRC, both sizes, and all bytes, by name
        self._begun: Entry | None = None
        self._packed = bytearray()

    @property
    def part(self) -> str:
        """See above."""
        return "" if self._begun is None else self._begun.filename

    def begin(self, entry: Entry) -> bytes:
        """Begin the content of an entry, in their order; returns bytes before it."""
        before = self._ended() + self._until(entry.header_offset)
        self._begun, self._size, self._crc = entry, 0, 0
        self._deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS) if entry.compress_type == ZIP_DEFLATED else None
        return before

    def put(self, content: bytes) -> None:
        """Add bytes to the content of the entry."""
        self._size, self._crc = self._size + len(content), zlib.crc32(content, self._crc)
        self._packed += self._deflate.compress(content) if self._deflate else content

    def finish(self) -> bytes:
        """Return all that is left."""
        return b"".join((self._ended(), self._until(self._archive.directory), self._ending()))

    def _until(self, place: int) -> bytes:
        first, self._done = self._done, place
        return self._archive.data[first:place]

    def _ended(self) -> bytes:
        """Return the entry that has begun, if it has changed."""
        entry, archive, packed = self._begun, self._archive, self._packed
        self._packed = bytearray()
        if entry is None or (self._size, self._crc) == (entry.file_size, entry.CRC):
            return b""
        packed += self._deflate.flush() if self._deflate else b""
        fields = list(_LOCAL.unpack_from(archive.data, entry.header_offset))
        name, extra = fields[9:]
        name_end = entry.header_offset + _LOCAL.size + name
        kept = _without_large(archive.data[name_end : name_end + extra])
        fields[2] &= ~_SIZES_AFTER
        fields[6:] = self._crc, len(packed), self._size, name, len(kept)
        written = b"".join((_LOCAL.pack(*fields), archive.data[name_end - name : name_end], kept, packed))
        self._changes[entry.filename] = self._crc, len(packed), self._size, len(written)
        self._done = archive.ends[bisect_right(archive.ends, entry.header_offset)]
        return written

    def _ending(self) -> bytes:
        """Return all after the entries, with their places and sizes of now."""
        archive, data = self._archive, self._archive.data
        if not self._changes:
            return data[self._done :]
        starts, moved = dict[str, int](), 0
        for entry, end in zip(archive.entries, archive.ends, strict=True):
            starts[entry.filename] = entry.header_offset + moved
            if changed := self._changes.get(entry.filename):
                moved += changed[3] - (end - entry.header_offset)
        records, place = list[bytes](), archive.directory
        for entry in archive.records:
            fields = list(_RECORD.unpack_from(data, place))
            name_end = place + _RECORD.size + fields[10]
            extra_end = name_end + fields[11]
            kept, after = _without_large(data[name_end:extra_end]), extra_end + fields[12]
            fields[7:10] = entry.CRC, entry.compress_size, entry.file_size
            if changed := self._changes.get(entry.filename):
                fields[3] &= ~_SIZES_AFTER
                fields[7:10] = changed[:3]
            fields[11], fields[16] = len(kept), starts[entry.filename]
            records += _RECORD.pack(*fields), data[name_end - fields[10] : name_end], kept, data[extra_end:after]
            place = after
        directory, end = b"".join(records), data.rfind(b"PK\5\6")
        fields = list(_END.unpack_from(data, end))
        fields[3:7] = len(starts), len(starts), len(directory), archive.directory + moved
        return directory + _END.pack(*fields) + data[end + _END.size :]


def _without_large(extra: bytes) -> bytes:
    """Return extra fields without those of 64 bits."""
    fields, place = list[bytes](), 0
    while place + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, place)
        fields += [extra[place : place + 4 + size]] if kind != _LARGE_FIELD else []
        place += 4 + size
    return b"".join((*fields, extra[place:]))
