"""Reads a journal from its files: every frame in order, or an error with the damaged offset.

In:   a journal's folder
Out:  frames with dense lsns; where the journal ends; the number of bytes of its torn end

- Files follow each other without a gap, from the oldest that must be there. Each but the last
  ends exactly where the header of the next one says, and its frames fill it exactly.
- In the last file the first bytes that are no frame are a torn end, unless something proves that
  a frame had been durable there: a later frame that says so, or the watermark. Then they are
  damage. Damage raises `Corruption` with file and offset; nothing is skipped.
- A newest file that never got a whole header was never written to; it counts for nothing. A file
  with anything behind a bad header is damage, and so is one that the identity or the watermark
  knows, or a file they know that is missing. One that was trimmed meanwhile is `NotFound`.
- A frame counts in the file it was written for and in no other, whatever the disk had in that
  place before: its tag is the one in the file's header.
- The watermark is read before the files are listed: what it says is in the files that are found.
- A watermark is written before the next frame and the next file. Where one of these says that more
  was durable than the watermark does, the watermark is an older copy of itself.
- Whole frames at the end of the last file that nothing proves durable are read like any other;
  `JournalTail.unproved` has them, which the next writer writes again first.
- Memory is bounded by one file: its torn end, or those frames. Of other files by one frame.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from thermocline.disk import Disk, FileReader, translate_errors
from thermocline.errors import Corruption, NotFound, Unsupported
from thermocline.hot.wal.folder import (
    DURABLE_NAME,
    IDENTITY_NAME,
    NO_FILE_YET,
    JournalIdentity,
    Watermark,
    file_path,
    list_file_numbers,
    read_identity,
    read_watermark,
)
from thermocline.hot.wal.frame import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    KIND_HOLE,
    KIND_ROWS,
    FileHeader,
    FrameHeader,
    Lsn,
    check_lengths,
    decode_file_header,
    decode_frame_header,
    whole_payload,
)

REPAIR_HINT = "`thermocline journal inspect` explains; `journal repair` sets the damage aside"
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One journal file; `end` is where the next file's header says it ends, None for the last."""

    path: str
    header: FileHeader
    size_bytes: int
    end: int | None

    def proved_behind(self, mark: Watermark) -> Lsn:
        """Return what this file proves durable by being there; 0 up to the watermark's own file."""
        # The frames before a file are durable before it has its name.
        return Lsn(self.header.first_lsn - 1 if self.header.number > mark.number else 0)


class Frame(NamedTuple):
    """One whole frame and its location."""

    header: FrameHeader
    payload: bytes
    path: str
    offset: int
    number: int


@dataclass(frozen=True, slots=True)
class JournalTail:
    """Where a journal ends: the file and offset to continue at, and the next lsn."""

    number: int
    end: int
    next_lsn: Lsn
    cut_bytes: int = 0
    unproved: tuple[Frame, ...] = ()
    leftover: str | None = None


class JournalReader:
    """One read of a journal; the constructor lists the files and checks their headers."""

    def __init__(self, disk: Disk, folder: str, identity: JournalIdentity | None = None) -> None:
        self._disk = disk
        self._folder = folder
        found = identity or read_identity(disk, folder)
        if found is None:
            raise Corruption("there is no journal here", hint="check the path", folder=folder)
        self.identity = found
        self.leftover: str | None = None
        self._mark = read_watermark(disk, folder, found.journal_id)
        self._unproved: deque[Frame] = deque()
        self.files = self._chain_files()
        self.tail: JournalTail | None = None

    def frames(self) -> Iterator[Frame]:
        """Yield every frame in order; afterwards `tail` is where the journal ends."""
        expected = self.files[0].header.first_lsn if self.files else Lsn(1)
        end = cut_bytes = 0
        for file in self.files:
            if file.header.first_lsn != expected:
                raise _damage_error(
                    "frames are missing between two files",
                    file.path,
                    0,
                    expected_lsn=expected,
                    first_lsn=file.header.first_lsn,
                )
            reading = FrameReader(self._disk, file, self.identity.journal_id)
            try:
                for frame in reading.frames(expected):
                    if file.end is None:
                        self._unproved.append(frame)
                        self._drop_proved(max(frame.header.durable, self._durable_mark))
                    yield frame
                expected, end = reading.next_lsn, reading.offset
                if file.end is None:
                    cut_bytes = self._count_cut_bytes(reading)
            finally:
                reading.close()
        number = self.files[-1].header.number if self.files else 0
        unproved = tuple(self._unproved)
        self.tail = JournalTail(number, end, expected, cut_bytes, unproved, self.leftover)

    def check_mark(self, mark: Watermark, proved: Lsn | None = None) -> None:
        """Raise `Corruption` for a watermark that is older than what the files prove.

        `proved` is the greatest lsn that is proved behind the watermark, where the caller has
        read the files already. A watermark that was read before this reader was made is right
        when the journal went on since: then the file has a newer one by now, or none.
        """
        proved = self.proved_behind(mark) if proved is None else proved
        if proved <= mark.visible:
            return
        now = read_watermark(self._disk, self._folder, self.identity.journal_id)
        if now is not None and now.visible < proved:
            raise Corruption(
                "the journal's watermark is an older copy",
                hint="start the node, which writes it again; without this file readers read every "
                "whole frame",
                path=f"{self._folder}/{DURABLE_NAME}",
                visible=now.visible,
                proved=proved,
            )

    def proved_behind(self, mark: Watermark) -> Lsn:
        """Return the greatest lsn that files say was durable, behind where a watermark ends."""
        proved = Lsn(0)
        for file in self.files:
            if file.header.number < mark.number:
                continue
            reading = FrameReader(self._disk, file, self.identity.journal_id)
            try:
                if file.header.number == mark.number:
                    deque(reading.frames(file.header.first_lsn, mark.end), maxlen=0)
                proved = max(proved, file.proved_behind(mark), reading.proof_of_rest())
            finally:
                reading.close()
        return proved

    @property
    def _durable_mark(self) -> Lsn:
        return self._mark.durable if self._mark else Lsn(0)

    def _drop_proved(self, durable: Lsn) -> None:
        kept = self._unproved
        while kept and kept[0].header.lsn <= durable:
            kept.popleft()

    def _count_cut_bytes(self, reading: "FrameReader") -> int:
        """Return the size of the last file's torn end; `Corruption` if it had a durable frame."""
        proved = max(reading.proved, self._durable_mark)
        if proved >= reading.next_lsn:
            raise _damage_error(
                "a frame that was durable is damaged or missing",
                reading.file.path,
                reading.offset,
                lsn=reading.next_lsn,
                durable_lsn=proved,
            )
        self._drop_proved(proved)
        return reading.cut_bytes

    def _chain_files(self) -> list[JournalFile]:
        found = [
            n for n in list_file_numbers(self._disk, self._folder) if n >= self.identity.oldest
        ]
        known = max(self.identity.oldest, self._mark.number if self._mark else NO_FILE_YET)
        self._check_present(found, known)
        opened: list[JournalFile] = []
        end: int | None = None
        for number in reversed(found):
            path = file_path(self._folder, number)
            size_bytes, header = self._read_header(path)
            is_newest = number == found[-1] and number > known
            if header is None and is_newest and size_bytes <= FILE_HEADER_BYTES:
                self.leftover = path
                continue
            self._check_header(header, number, path)
            assert header is not None
            if end is not None and size_bytes < end:
                raise _damage_error("a file is shorter than it was", path, size_bytes, end=end)
            opened.append(JournalFile(path, header, size_bytes, end))
            end = header.previous_end
        return opened[::-1]

    def _check_present(self, found: list[int], known: int) -> None:
        first = self.identity.oldest or 1
        last = max([known, *found])
        for place in range(first, last + 1):
            if place - first >= len(found) or found[place - first] != place:
                path = file_path(self._folder, place)
                # A journal in use may have been trimmed since its identity was read.
                now = read_identity(self._disk, self._folder)
                if now is not None and now.oldest > place:
                    hint = "read the journal again"
                    raise NotFound("the journal file was trimmed", hint=hint, path=path)
                raise Corruption(
                    "a file of the journal is missing",
                    hint=REPAIR_HINT,
                    path=path,
                    **self._proof_of(place, found),
                )

    def _proof_of(self, missing: int, found: list[int]) -> dict[str, str]:
        """Return the file that proves that a missing file existed, if its neighbours do not."""
        if not found or missing < found[0]:
            return {"proof": f"{self._folder}/{IDENTITY_NAME}"}
        return {"proof": f"{self._folder}/{DURABLE_NAME}"} if missing > found[-1] else {}

    def _check_header(self, header: FileHeader | None, number: int, path: str) -> None:
        if header is None:
            raise _damage_error("a file has no whole header", path, 0)
        if header.number != number or header.journal_id != self.identity.journal_id:
            raise _damage_error("a file has another number or belongs to another journal", path, 0)

    def _read_header(self, path: str) -> tuple[int, FileHeader | None]:
        with translate_errors(path):
            size_bytes = self._disk.size(path)
            reader = self._disk.open_reader(path)
            try:
                data = _read_exactly(reader, FILE_HEADER_BYTES)
            finally:
                reader.close()
        return size_bytes or 0, decode_file_header(data)


class FrameReader:
    """Reads the frames of one file once, from its start.

    After `frames` ended, `next_lsn` and `offset` are where the whole frames end. For a last file,
    `cut_bytes` is the number of bytes after them, and `proved` the greatest lsn that a frame
    header in those bytes says was durable.
    """

    def __init__(self, disk: Disk, file: JournalFile, journal_id: bytes) -> None:
        self.file = file
        self._journal_id = journal_id
        self._tag = file.header.tag
        with translate_errors(file.path):
            self._reader = disk.open_reader(file.path)
            try:
                _read_exactly(self._reader, FILE_HEADER_BYTES)
            except BaseException:
                self._reader.close()
                raise
        self._buffer, self._start = b"", 0
        self.offset = FILE_HEADER_BYTES
        self.next_lsn = file.header.first_lsn
        self.cut_bytes = 0
        self.proved = Lsn(0)

    def frames(self, expected: Lsn, until: int | None = None) -> Iterator[Frame]:
        """Yield the frames up to the end of the file, or up to an offset known to be an end."""
        self.next_lsn = expected
        yield from self._until(self.file.end if until is None else until)

    def proof_of_rest(self) -> Lsn:
        """Read on from where `frames` ended; return the greatest lsn the rest says was durable."""
        proved = max((one.header.durable for one in self._until(self.file.end)), default=Lsn(0))
        return max(proved, self.proved)

    def _until(self, end: int | None) -> Iterator[Frame]:
        while end is None or self.offset < end:
            frame = self._read_next(end)
            if frame is None:
                return
            self.next_lsn = Lsn(frame.header.lsn + frame.header.span)
            self.offset += frame.header.size_bytes
            yield frame

    def _read_next(self, end: int | None) -> Frame | None:
        """Return the next frame; None at the end of the last file, torn or not."""
        self._fill_buffer(FRAME_HEADER_BYTES)
        header = decode_frame_header(self._journal_id, self._buffer, self._start)
        if header is None or (header.lsn, header.tag) != (self.next_lsn, self._tag):
            self._end_or_raise("expected a frame and found other bytes", end)
            return None
        check_lengths(header, self.file.path, self.offset)
        self._fill_buffer(header.size_bytes)
        payload = whole_payload(header, self._buffer, self._start)
        if payload is None:
            self._end_or_raise("a frame's checksum differs", end)
            return None
        if header.kind not in (KIND_ROWS, KIND_HOLE):
            hint = "open it with a newer Thermocline"
            raise Unsupported("the frame's kind is unknown", hint=hint, kind=header.kind)
        if end is not None and self.offset + header.size_bytes > end:
            self._end_or_raise("a frame reaches over the end of its file", end)
            return None
        self._start += header.size_bytes
        return Frame(header, payload, self.file.path, self.offset, self.file.header.number)

    def _end_or_raise(self, message: str, end: int | None) -> None:
        if end is not None:
            raise _damage_error(message, self.file.path, self.offset, lsn=self.next_lsn)
        size_bytes = max(0, self.file.size_bytes - self.offset) + 1
        self._fill_buffer(size_bytes)
        rest = self._buffer[self._start : self._start + size_bytes]
        self.cut_bytes = len(rest)
        place = rest.find(FRAME_MAGIC)
        while place >= 0:
            header = decode_frame_header(self._journal_id, rest, place)
            if header is not None and header.tag == self._tag:
                self.proved = max(self.proved, header.durable)
            place = rest.find(FRAME_MAGIC, place + 1)

    def _fill_buffer(self, size_bytes: int) -> None:
        """Buffer that many bytes from `_start` on; fewer only at the end of the file."""
        if len(self._buffer) - self._start < size_bytes:
            pieces = [self._buffer[self._start :]]
            missing = size_bytes - len(pieces[0])
            with translate_errors(self.file.path):
                while missing > 0 and (more := self._reader.read(max(READ_BYTES, missing))):
                    pieces.append(more)
                    missing -= len(more)
            self._buffer, self._start = b"".join(pieces), 0

    def close(self) -> None:
        """Close the file."""
        with translate_errors(self.file.path):
            self._reader.close()


def _read_exactly(reader: FileReader, size_bytes: int) -> bytes:
    found = b""
    while len(found) < size_bytes:
        more = reader.read(size_bytes - len(found))
        if not more:
            break
        found += more
    return found


def _damage_error(message: str, path: str, offset: int, **facts: object) -> Corruption:
    return Corruption(message, hint=REPAIR_HINT, path=path, offset=offset, **facts)
