"""Finds the whole frames and the damaged stretches in one journal file.

In:   a file's bytes, and what its neighbours and the watermark say about it
Out:  whole frames and damaged stretches, in order; where the file ends; the size of its torn end

- A frame counts only if its header's checksum, its file's tag and its payload's checksum are
  right, and its lsn is at least the next expected one and below the next file's first.
- A whole header's length is trusted even if its payload is damaged: bytes that look like a frame
  inside a payload are not one.
- In an undamaged file it finds exactly the frames that `reader.py` finds; where `reader.py` raises
  it returns a stretch. Both use the same rule for a torn end of the last file.

It reads no files and changes nothing.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from thermocline.errors import Unsupported
from thermocline.hot.wal.frame import (
    FILE_HEADER_BYTES,
    FRAME_MAGIC,
    KIND_HOLE,
    KIND_ROWS,
    PAYLOAD_BYTES_MAX,
    UNSALTED_VERSION,
    FileTag,
    FrameHeader,
    Lsn,
    decode_frame_header,
    whole_payload,
)

NO_FRAME = "expected a frame and found other bytes"
BAD_PAYLOAD = "a frame's checksum differs"
TOO_LONG = "a frame is longer than the limit"
TOO_SHORT = "the file is shorter than it was"
FRAMES_MISSING = "frames are missing between two others"


@dataclass(frozen=True, slots=True)
class WholeFrame:
    """A whole frame and its offset."""

    header: FrameHeader
    payload: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """Bytes without whole frames; `lost` are the headers of lost frames that are still whole."""

    offset: int
    size_bytes: int
    first_lsn: Lsn
    last_lsn: Lsn
    why: str
    lost: tuple[FrameHeader, ...] = ()


@dataclass(frozen=True, slots=True)
class FileBounds:
    """What other files say about a file.

    `limit` is the first lsn of the next file whose first lsn is known. `end` is where the next
    file's header says that this one ends. If `is_next_known`, this file must reach the limit;
    otherwise the loss is reported for a later file. `proved` is the lsn that the watermark says is
    durable; it is used for the last file only.
    """

    first_lsn: Lsn
    limit: Lsn | None
    end: int | None
    is_next_known: bool
    is_last: bool
    has_header: bool
    proved: Lsn


class Salvage:
    """One pass over a file; afterwards `offset`, `next_lsn` and `torn_bytes` describe its end."""

    def __init__(
        self, data: bytes, journal_id: bytes, tag: FileTag | None, bounds: FileBounds
    ) -> None:
        self._data = data
        self._journal_id = journal_id
        self._tag = tag
        self._bounds = bounds
        self.offset = FILE_HEADER_BYTES
        self.next_lsn = bounds.first_lsn
        self.torn_bytes = 0

    def pieces(self) -> Iterator[WholeFrame | DamagedStretch]:
        """Yield whole frames and damaged stretches in order."""
        limit = self._bounds.limit
        while limit is None or self.next_lsn < limit:
            found = self._whole_frame_at(self.offset)
            if found is not None and found.header.lsn == self.next_lsn:
                self.offset += found.header.size_bytes
                self.next_lsn = Lsn(found.header.lsn + found.header.span)
                yield found
                continue
            found, lost = self._find_next_whole()
            stretch = self._damaged_stretch(found, lost)
            if stretch is None:
                return
            yield stretch
            self.next_lsn = Lsn(stretch.last_lsn + 1)
            self.offset = stretch.offset + stretch.size_bytes
            if found is None:
                return

    def _damaged_stretch(
        self, found: WholeFrame | None, lost: list[FrameHeader]
    ) -> DamagedStretch | None:
        """Return the damage up to the next whole frame; None if no frame has to be here."""
        limit, offset, first = self._bounds.limit, self.offset, self.next_lsn
        size_bytes = max(0, len(self._data) - offset)
        last: int
        if self._bounds.is_last:
            proved = self._proved_lsn(lost)
            is_torn = proved < first and (found is None or self._bounds.has_header)
            if is_torn:
                self.torn_bytes = size_bytes
                return None
            last = proved
        elif limit is not None and self._bounds.is_next_known:
            last = limit - 1
            if self._bounds.end is not None:
                size_bytes = max(0, self._bounds.end - offset)
        elif found is None:
            return None
        if found is not None:
            last, size_bytes = found.header.lsn - 1, found.offset - offset
        return DamagedStretch(
            offset, size_bytes, first, Lsn(last), self._reason(found), tuple(lost)
        )

    def _reason(self, found: WholeFrame | None) -> str:
        if found is not None and found.offset == self.offset:
            return FRAMES_MISSING
        header = self._header_at(self.offset)
        if header is not None and header.lsn == self.next_lsn:
            return BAD_PAYLOAD if _is_believable(header) else TOO_LONG
        end = self._bounds.end
        is_short = self.offset >= len(self._data) and (end is None or end > self.offset)
        return TOO_SHORT if is_short else NO_FRAME

    def _proved_lsn(self, lost: list[FrameHeader]) -> Lsn:
        """Return the greatest lsn that the watermark or a header from here on says was durable."""
        proved = self._bounds.proved
        place = self._data.find(FRAME_MAGIC, self.offset)
        while place >= 0:
            header = self._header_at(place)
            if header is not None:
                proved = max(proved, header.durable)
            place = self._data.find(FRAME_MAGIC, place + 1)
        # A whole header with impossible lengths is damage, not a torn write.
        return max([proved, *(header.lsn for header in lost if not _is_believable(header))])

    def _find_next_whole(self) -> tuple[WholeFrame | None, list[FrameHeader]]:
        """Return the next whole frame of this file, and the headers of lost frames before it."""
        lost: list[FrameHeader] = []
        place = self._data.find(FRAME_MAGIC, self.offset)
        while place >= 0:
            step = 1
            header = self._header_at(place)
            if header is not None and self._is_next(header):
                found = self._whole_frame_at(place)
                if found is not None:
                    return found, [one for one in lost if one.lsn < header.lsn]
                lost.append(header)
                step = header.size_bytes if _is_believable(header) else 1
            place = self._data.find(FRAME_MAGIC, place + step)
        return None, lost

    def _is_next(self, header: FrameHeader) -> bool:
        limit = self._bounds.limit
        is_before_limit = limit is None or header.lsn + header.span <= limit
        return header.lsn >= self.next_lsn and is_before_limit

    def _whole_frame_at(self, place: int) -> WholeFrame | None:
        header = self._header_at(place)
        if header is None or not _is_believable(header) or not self._is_next(header):
            return None
        payload = whole_payload(header, self._data, place)
        if payload is None:
            return None
        if header.kind not in (KIND_ROWS, KIND_HOLE):
            hint = "open it with a newer Thermocline"
            raise Unsupported("the frame's kind is unknown", hint=hint, kind=header.kind)
        return WholeFrame(header, payload, place)

    def _header_at(self, place: int) -> FrameHeader | None:
        header = decode_frame_header(self._journal_id, self._data, place)
        return header if header is not None and header.tag == self._tag else None


def tag_of(
    data: bytes, journal_id: bytes, number: int, foreign: Collection[FileTag]
) -> FileTag | None:
    """Return the tag of the frames of a file without a header; None if no frame header is whole.

    The first whole frame header decides: stale bytes of the disk lie after the frames that were
    written. `foreign` are the tags of other files, which this file cannot have.
    """
    place = data.find(FRAME_MAGIC, FILE_HEADER_BYTES)
    while place >= 0:
        header = decode_frame_header(journal_id, data, place)
        if header is not None and _is_possible(header.tag, number, foreign):
            return header.tag
        place = data.find(FRAME_MAGIC, place + 1)
    return None


def _is_possible(tag: FileTag, number: int, foreign: Collection[FileTag]) -> bool:
    return tag not in foreign and (tag.version != UNSALTED_VERSION or tag.salt == number)


def _is_believable(header: FrameHeader) -> bool:
    return max(header.length, header.raw_length) <= PAYLOAD_BYTES_MAX
