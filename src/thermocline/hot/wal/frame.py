"""The bytes of a journal: a header for each file, a frame for each write.

    file header, 64 bytes                       frame, 72 bytes + payload + 4
     0   8  magic  "TCJRNL\\r\\n"                   0   4  magic  f7 "TCF"
     8   2  format version                       4   1  format version
    10   2  zero                                 5   1  kind: 1 rows, 2 hole
    12  16  journal id                           6   1  codec: 0 none, 1 zstd, 2 lz4
    28   8  number of this file                  7   1  zero
    36   8  lsn of its first frame               8   8  lsn
    44   8  salt, drawn for this file           16   8  salt of this file
    52   8  where the file before ends          24   8  durable: up to this lsn when written
    60   4  CRC32C of bytes 0 to 60             32   8  when written, ns since 1970
                                                40  16  table id
                                                56   4  schema id; of a hole, its lsns
                                                60   4  length of the payload
                                                64   4  length of it without the codec
                                                68   4  CRC32C of journal id and bytes 0 to 68
                                                72   …  payload
                                                  +  4  CRC32C of journal id, bytes 0 to 68
                                                        and the payload

- All numbers are little-endian. A reader verifies a header's checksum before it uses any number,
  so it only trusts a length that was written; it checks the length's limit all the same.
- A frame belongs to its file: its header has the file's salt, and the checksum covers the journal's
  id. So a reader rejects stale bytes of the disk, even those of an earlier file with the same
  number and the same lsns.
- A payload belongs to its header: its checksum continues the header's. If a torn write left the
  first sectors of a frame, the last sectors of an older frame do not complete it.
- Format 1 has the file's number instead of a frame's salt, the previous file's number instead of a
  file's salt, and a checksum of the payload alone. Thermocline reads it, and writes it where a
  repair keeps frames of it; new files have format 2.
- `durable` distinguishes a torn end from damage: if a frame says that an earlier frame was
  durable, the earlier frame had been whole.
- A file's end is stored in the next file's header, never in the file itself.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple, NewType

import google_crc32c

from thermocline.errors import Corruption, Unsupported

Lsn = NewType("Lsn", int)

FORMAT_VERSION = 2
UNSALTED_VERSION = 1
SALT_BITS = 64
FILE_MAGIC = b"TCJRNL\r\n"
FRAME_MAGIC = b"\xf7TCF"
KIND_ROWS = 1
KIND_HOLE = 2
CODEC_NONE = 0
CODEC_ZSTD = 1
CODEC_LZ4 = 2
PAYLOAD_BYTES_MAX = 32 << 20

_FILE = struct.Struct("<8sHH16sQQQQ")
_FRAME = struct.Struct("<4sBBBBQQQq16sIII")
_CRC = struct.Struct("<I")
FILE_HEADER_BYTES = _FILE.size + _CRC.size
FRAME_HEADER_BYTES = _FRAME.size + _CRC.size
CHECKSUM_BYTES = _CRC.size


class FileTag(NamedTuple):
    """What the frames of one file, and only they, have in common; format 1: salt = file number.

    If a crash loses a file, its successor with the same number has another tag.
    """

    version: int
    salt: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file; `previous_end` is where the file before it ends."""

    journal_id: bytes
    number: int
    first_lsn: Lsn
    salt: int
    previous_end: int
    version: int = FORMAT_VERSION

    @property
    def tag(self) -> FileTag:
        """The tag that every frame of this file must have."""
        return FileTag(self.version, self.salt)


class FrameHeader(NamedTuple):
    """The header of one frame."""

    kind: int
    codec: int
    lsn: Lsn
    salt: int
    durable: Lsn
    written_ns: int
    table_id: bytes
    schema_id: int
    length: int
    raw_length: int
    version: int = FORMAT_VERSION

    @property
    def tag(self) -> FileTag:
        """The tag of the file that the frame was written for."""
        return FileTag(self.version, self.salt)

    @property
    def span(self) -> int:
        """The number of lsns of this frame: 1, or for a hole those that it replaces."""
        return self.schema_id if self.kind == KIND_HOLE else 1

    @property
    def size_bytes(self) -> int:
        """The size of the whole frame: header, payload and checksum."""
        return FRAME_HEADER_BYTES + self.length + CHECKSUM_BYTES


def encode_file_header(header: FileHeader) -> bytes:
    """Return the first bytes of a file."""
    is_salted = header.version != UNSALTED_VERSION
    assert is_salted or header.salt == header.number
    body = _FILE.pack(
        FILE_MAGIC,
        header.version,
        0,
        header.journal_id,
        header.number,
        header.first_lsn,
        header.salt if is_salted else header.number - 1,
        header.previous_end,
    )
    return body + _CRC.pack(google_crc32c.value(body))


def decode_file_header(data: bytes) -> FileHeader | None:
    """Return the header of a file, or None when the bytes are not a whole header.

    `Unsupported` for a whole header of a newer format.
    """
    if len(data) < FILE_HEADER_BYTES:
        return None
    body = data[: _FILE.size]
    if _CRC.unpack_from(data, _FILE.size)[0] != google_crc32c.value(body):
        return None
    magic, version, _, journal_id, number, first, salt, previous_end = _FILE.unpack(body)
    if magic != FILE_MAGIC:
        return None
    _check_version(version)
    if version == UNSALTED_VERSION:
        salt = number
    return FileHeader(journal_id, number, Lsn(first), salt, previous_end, version)


def encode_frame(journal_id: bytes, header: FrameHeader, payload: bytes) -> list[bytes]:
    """Return a frame in pieces: header, payload, checksum."""
    assert len(payload) == header.length <= PAYLOAD_BYTES_MAX
    body = _FRAME.pack(
        FRAME_MAGIC,
        header.version,
        header.kind,
        header.codec,
        0,
        header.lsn,
        header.salt,
        header.durable,
        header.written_ns,
        header.table_id,
        header.schema_id,
        header.length,
        header.raw_length,
    )
    crc = google_crc32c.extend(google_crc32c.value(journal_id), body)
    return [body + _CRC.pack(crc), payload, _CRC.pack(_payload_crc(header, crc, payload))]


def decode_frame_header(journal_id: bytes, data: bytes, offset: int = 0) -> FrameHeader | None:
    """Return the header of a frame at an offset, or None when the bytes are not a whole header.

    The caller compares its tag with the file's. `Unsupported` for a header of a newer format.
    """
    if len(data) - offset < FRAME_HEADER_BYTES:
        return None
    body = bytes(data[offset : offset + _FRAME.size])
    if not body.startswith(FRAME_MAGIC):
        return None
    crc = google_crc32c.extend(google_crc32c.value(journal_id), body)
    if _CRC.unpack_from(data, offset + _FRAME.size)[0] != crc:
        return None
    (_, version, kind, codec, _, lsn, salt, durable, written, table, schema, length, raw) = (
        _FRAME.unpack(body)
    )
    _check_version(version)
    return FrameHeader(
        kind, codec, Lsn(lsn), salt, Lsn(durable), written, table, schema, length, raw, version
    )


def whole_payload(header: FrameHeader, data: bytes, offset: int = 0) -> bytes | None:
    """Return the payload of the frame at an offset, or None when its checksum differs.

    `header` is what `decode_frame_header` returned for the same offset.
    """
    start = offset + FRAME_HEADER_BYTES
    end = start + header.length
    if len(data) < end + CHECKSUM_BYTES:
        return None
    payload = bytes(data[start:end])
    crc = _payload_crc(header, _CRC.unpack_from(data, start - CHECKSUM_BYTES)[0], payload)
    return payload if crc == _CRC.unpack_from(data, end)[0] else None


def _payload_crc(header: FrameHeader, header_crc: int, payload: bytes) -> int:
    # Bytes 68 to 72 are left out: the CRC over bytes and their own CRC is the same for all bytes.
    seed = 0 if header.version == UNSALTED_VERSION else header_crc
    return google_crc32c.extend(seed, payload)


def check_lengths(header: FrameHeader, path: str, offset: int) -> None:
    """Raise `Corruption` for lengths above the limit that writers keep."""
    if max(header.length, header.raw_length) > PAYLOAD_BYTES_MAX:
        raise Corruption(
            "a frame is longer than the limit",
            hint="`thermocline journal inspect` explains; `journal repair` sets it aside",
            path=path,
            offset=offset,
            length=header.length,
            length_max=PAYLOAD_BYTES_MAX,
        )


def _check_version(version: int) -> None:
    if version not in (UNSALTED_VERSION, FORMAT_VERSION):
        raise Unsupported(
            "the journal was written by a newer Thermocline",
            hint="open it with that version",
            format_version=version,
            supported=FORMAT_VERSION,
        )
