"""Inspects a whole journal, damaged or live: its content, and what a start would do.

In:   a journal's folder
Out:  an `Inspection`: files, tables, the watermark, every damage with its losses

- It changes nothing and needs no lock, so it can inspect a journal that another process writes. It
  reads the watermark first, so that the frames that the watermark covers are in the files.
- If a file's header is lost, its tag comes from its frames; tags of other files do not count.
- Lsns connect the files: if headers or whole files are lost, the neighbours give their lsns.
- If the first files are lost without any trace, it reports all lsns before the remaining files as
  lost: possibly too many, never too few.
- Memory is bounded by one file.
"""

import enum
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from thermocline.disk import Disk, translate_errors
from thermocline.errors import Corruption, NotFound
from thermocline.hot.wal.folder import (
    NO_FILE_YET,
    JournalIdentity,
    Watermark,
    file_path,
    list_file_numbers,
    read_watermark,
    require_identity,
)
from thermocline.hot.wal.frame import (
    CHECKSUM_BYTES,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    KIND_HOLE,
    KIND_ROWS,
    FileHeader,
    FileTag,
    FrameHeader,
    Lsn,
    decode_file_header,
    decode_frame_header,
)
from thermocline.hot.wal.payload import decode_rows
from thermocline.hot.wal.repair.damage import TABLES_LISTED_MAX, Damage, decode_hole
from thermocline.hot.wal.repair.quarantine import QuarantineFile, list_quarantine
from thermocline.hot.wal.repair.salvage import (
    DamagedStretch,
    FileBounds,
    Salvage,
    WholeFrame,
    tag_of,
)

Progress = Callable[[int, int], None]
"""Called with the number of bytes done and the number of all bytes."""

ATTEMPTS_MAX = 10
DIGEST_LENGTH = 16
NO_HEADER = "the file has no whole header"
FOREIGN_HEADER = "the file has another number or belongs to another journal"
FILE_MISSING = "the file is missing"
WRONG_END = "the next file's header says that this one ends elsewhere"
_FRAME_BYTES_MIN = FRAME_HEADER_BYTES + CHECKSUM_BYTES


class FileState(enum.Enum):
    """The condition of a journal file."""

    WHOLE = "whole"
    TORN = "torn end"
    DAMAGED = "damaged"
    MISSING = "missing"
    LEFTOVER = "leftover"


@dataclass(slots=True)
class InspectedFile:
    """One file of a journal.

    `parts` is what a repair makes of it, in order: ranges of bytes to keep, and indexes of damages
    in `Inspection.damages`. `first_lsn` and `end` are what its header and the next file's header
    must say. `tag` is None if neither the header nor a frame gives it.
    """

    number: int
    path: str
    state: FileState
    size_bytes: int = 0
    header: FileHeader | None = None
    tag: FileTag | None = None
    first_lsn: Lsn = Lsn(0)
    next_lsn: Lsn = Lsn(0)
    end: int = FILE_HEADER_BYTES
    frames: int = 0
    frame_bytes: int = 0
    torn_bytes: int = 0
    digest: str = ""
    parts: list[range | int] = field(default_factory=list)


@dataclass(slots=True)
class InspectedTable:
    """The frames of one table; `unreadable` ones are whole but cannot be decoded."""

    frames: int = 0
    rows: int = 0
    size_bytes: int = 0
    unreadable: int = 0


@dataclass(slots=True)
class Inspection:
    """The result of an inspection.

    `damages` prevent a start. `holes` do not: they are losses that earlier repairs recorded.
    `quarantined` are the files that a person has set aside and not removed yet.
    """

    folder: str
    identity: JournalIdentity
    watermark: Watermark | None
    files: list[InspectedFile] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    holes: list[Damage] = field(default_factory=list)
    tables: dict[str, InspectedTable] = field(default_factory=dict)
    quarantined: list[QuarantineFile] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether a process can start with this journal."""
        return not self.damages

    @property
    def is_repairable(self) -> bool:
        """Whether a file or the watermark says which lsns the journal had reached."""
        has_any = any(file.header is not None or file.frames for file in self.chain)
        return has_any or self.watermark is not None

    @property
    def torn_bytes(self) -> int:
        """The number of bytes at the end that a start would ignore."""
        return sum(file.torn_bytes for file in self.files)

    @property
    def chain(self) -> list[InspectedFile]:
        """The files whose frames count, in order."""
        return [file for file in self.files if file.state is not FileState.LEFTOVER]


def inspect(disk: Disk, folder: str, *, progress: Progress | None = None) -> Inspection:
    """Inspect the journal in a folder; `NotFound` when there is no journal.

    `Unsupported` when a newer Thermocline wrote it, `Corruption` when its identity file is missing
    or damaged, so that it is unknown which files belong to it.
    """
    for _ in range(ATTEMPTS_MAX):
        identity = require_identity(disk, folder)
        mark = read_watermark(disk, folder, identity.journal_id)
        found = None
        # A live journal may trim files during the inspection: its identity changes, and the
        # inspection starts again.
        with suppress(NotFound):
            found = _Survey(disk, folder, identity, mark, progress).run()
        is_steady = require_identity(disk, folder) == identity
        if found is not None and (found.is_sound or is_steady):
            return found
    raise Corruption(
        "the journal's files keep changing during the inspection",
        hint="inspect it again; if that fails too, stop the process that writes it",
        folder=folder,
    )


class _Survey:
    """One pass over a journal's files in order."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        identity: JournalIdentity,
        mark: Watermark | None,
        progress: Progress | None,
    ) -> None:
        self._disk = disk
        self._identity = identity
        self._progress = progress
        held = list_quarantine(disk, folder)
        self._found = Inspection(folder, identity, mark, quarantined=held)
        self._known: dict[int, Lsn] = {}
        self._tags: set[FileTag] = set()
        self._after_ns: int | None = None
        self._lost: list[tuple[FrameHeader, ...]] = []

    def run(self) -> Inspection:
        self._list_files()
        chain = self._found.chain
        total = sum(file.size_bytes for file in chain)
        done, expected = 0, None
        for place, file in enumerate(chain):
            later = chain[place + 1 :]
            expected = self._survey_file(file, expected, later)
            done += file.size_bytes
            if self._progress is not None:
                self._progress(done, total)
        self._name_tables()
        return self._found

    def _list_files(self) -> None:
        """List every file that exists or must exist, and read all headers."""
        folder, oldest = self._found.folder, self._identity.oldest
        there = list_file_numbers(self._disk, folder)
        for number in there:
            if number < oldest:
                path = file_path(folder, number)
                file = InspectedFile(number, path, FileState.LEFTOVER, self._size(path))
                self._found.files.append(file)
        there = [number for number in there if number >= oldest]
        mark = self._found.watermark
        known = max(oldest, mark.number if mark is not None else NO_FILE_YET)
        last = max([known, *there])
        for number in range(oldest or 1, last + 1):
            file = InspectedFile(number, file_path(folder, number), FileState.MISSING)
            if number in there:
                self._read_header(file, is_new=number == last > known)
            self._found.files.append(file)
        for file in self._found.chain:
            if file.header is None and file.state is not FileState.MISSING:
                self._read_tag(file)
        self._check_order()

    def _size(self, path: str) -> int:
        with translate_errors(path):
            return self._disk.size(path) or 0

    def _read_header(self, file: InspectedFile, *, is_new: bool) -> None:
        file.size_bytes = self._size(file.path)
        with translate_errors(file.path):
            reader = self._disk.open_reader(file.path)
            try:
                header = decode_file_header(reader.read(FILE_HEADER_BYTES))
            finally:
                reader.close()
        if header is None and is_new and file.size_bytes <= FILE_HEADER_BYTES:
            file.state = FileState.LEFTOVER
            return
        file.state = FileState.WHOLE
        if header is not None:
            self._tags.add(header.tag)
            if self._is_own(header, file.number):
                file.header, file.tag = header, header.tag
                self._known[file.number] = header.first_lsn

    def _read_tag(self, file: InspectedFile) -> None:
        """Derive from its frames what the lost header of a file said."""
        journal_id = self._identity.journal_id
        with translate_errors(file.path):
            data = self._disk.read(file.path)
        file.tag = tag_of(data, journal_id, file.number, self._tags)
        # If the first frame is at its offset, its lsn is the file's first lsn.
        first = decode_frame_header(journal_id, data, FILE_HEADER_BYTES)
        if first is not None and first.tag == file.tag:
            self._known[file.number] = first.lsn

    def _is_own(self, header: FileHeader, number: int) -> bool:
        return header.number == number and header.journal_id == self._identity.journal_id

    def _check_order(self) -> None:
        """Refuse headers that contradict each other: it is unknown which one is right."""
        before = 0
        for number, first in sorted(self._known.items()):
            if first < before:
                raise Corruption(
                    "two files of the journal claim the same lsns",
                    hint="one of them is an older copy; put the right file back",
                    path=file_path(self._found.folder, number),
                    first_lsn=first,
                    lsn_before=before,
                )
            before = first

    def _survey_file(
        self, file: InspectedFile, expected: Lsn | None, later: list[InspectedFile]
    ) -> Lsn:
        """Read one file and return the first lsn of the next one."""
        data = b""
        if file.state is not FileState.MISSING:
            with translate_errors(file.path):
                data = self._disk.read(file.path)
            file.size_bytes = len(data)
            file.digest = hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]
        bounds = self._bounds_of(file, data, expected, later)
        file.first_lsn = bounds.first_lsn
        if file.header is None:
            self._note_header(file, data)
        scan = Salvage(data, self._identity.journal_id, file.tag, bounds)
        for piece in scan.pieces():
            self._add_piece(file, piece)
        file.end, file.next_lsn, file.torn_bytes = scan.offset, scan.next_lsn, scan.torn_bytes
        damages = [part for part in file.parts if isinstance(part, int)]
        if not damages and bounds.end is not None and bounds.end != scan.offset:
            self._note_damage(
                file, DamagedStretch(scan.offset, 0, scan.next_lsn, _lsn_before(scan), WRONG_END)
            )
        if file.torn_bytes and file.state is FileState.WHOLE:
            file.state = FileState.TORN
        return scan.next_lsn

    def _bounds_of(
        self, file: InspectedFile, data: bytes, expected: Lsn | None, later: list[InspectedFile]
    ) -> FileBounds:
        starts = [self._known[one.number] for one in later if one.number in self._known]
        mark = self._found.watermark
        bounds = FileBounds(
            first_lsn=self._known.get(file.number, Lsn(1)) if expected is None else expected,
            limit=starts[0] if starts else None,
            end=later[0].header.previous_end if later and later[0].header else None,
            is_next_known=bool(later) and later[0].number in self._known,
            is_last=not later,
            has_header=file.header is not None,
            proved=mark.durable if mark is not None else Lsn(0),
        )
        is_start_known = expected is not None or file.number in self._known or file.number == 1
        if is_start_known or bounds.limit is None:
            return bounds
        # No more frames can be lost than fit into the damaged bytes.
        scan = Salvage(data, self._identity.journal_id, file.tag, bounds)
        piece = next(scan.pieces(), None)
        if not isinstance(piece, DamagedStretch) or not piece.size_bytes:
            return bounds
        first = piece.last_lsn + 1 - piece.size_bytes // _FRAME_BYTES_MIN
        return replace(bounds, first_lsn=Lsn(max(1, first)))

    def _note_header(self, file: InspectedFile, data: bytes) -> None:
        """Record a missing header as a damage; that alone loses no frame."""
        if file.state is FileState.MISSING:
            why, size_bytes = FILE_MISSING, 0
        else:
            header = decode_file_header(data[:FILE_HEADER_BYTES])
            why = NO_HEADER if header is None else FOREIGN_HEADER
            size_bytes = min(len(data), FILE_HEADER_BYTES)
        first = file.first_lsn
        self._note_damage(file, DamagedStretch(0, size_bytes, first, Lsn(first - 1), why))

    def _add_piece(self, file: InspectedFile, piece: WholeFrame | DamagedStretch) -> None:
        if isinstance(piece, DamagedStretch):
            if file.state is FileState.MISSING:
                piece = replace(piece, why=FILE_MISSING)
            file.parts.append(len(self._found.damages))
            self._note_damage(file, piece)
            return
        header, start = piece.header, piece.offset
        file.frames += 1
        file.frame_bytes += header.size_bytes
        last = file.parts[-1] if file.parts else None
        if isinstance(last, range) and last.stop == start:
            file.parts[-1] = range(last.start, start + header.size_bytes)
        else:
            file.parts.append(range(start, start + header.size_bytes))
        self._count_frame(header, piece.payload)

    def _count_frame(self, header: FrameHeader, payload: bytes) -> None:
        if header.kind == KIND_HOLE:
            with suppress(Corruption):
                self._found.holes.append(decode_hole(payload))
            return
        table = self._found.tables.setdefault(header.table_id.hex(), InspectedTable())
        table.frames += 1
        table.size_bytes += header.size_bytes
        try:
            table.rows += decode_rows(header, payload).batch.num_rows
        except Corruption:
            table.unreadable += 1
        self._after_ns = header.written_ns
        for place in range(len(self._found.damages) - 1, -1, -1):
            damage = self._found.damages[place]
            if damage.before_ns is not None:
                break
            self._found.damages[place] = replace(damage, before_ns=header.written_ns)

    def _note_damage(self, file: InspectedFile, stretch: DamagedStretch) -> None:
        if file.state is not FileState.MISSING:
            file.state = FileState.DAMAGED
        name = file.path.rpartition("/")[2]
        damage = Damage(
            stretch.first_lsn,
            stretch.last_lsn,
            name,
            stretch.offset,
            stretch.size_bytes,
            stretch.why,
            self._after_ns,
        )
        self._found.damages.append(damage)
        self._lost.append(stretch.lost)

    def _name_tables(self) -> None:
        """List the tables that each damage may affect; all frames have been read by now."""
        for place, damage in enumerate(self._found.damages):
            lost = self._lost[place]
            own = {header.table_id.hex() for header in lost if header.kind == KIND_ROWS}
            is_known = len(lost) == damage.lost_lsns and all(h.kind == KIND_ROWS for h in lost)
            named = sorted(own if is_known else own | self._found.tables.keys())
            tables = tuple(named) if len(named) <= TABLES_LISTED_MAX else None
            self._found.damages[place] = replace(damage, tables=tables, are_tables_known=is_known)


def _lsn_before(scan: Salvage) -> Lsn:
    return Lsn(scan.next_lsn - 1)
