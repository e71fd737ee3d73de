"""Writes the journal: one write and one fsync for a whole group, files by counter.

In:   groups of entries
Out:  lsns; under the policy `always` the entries are durable when `append` returns

- A new file gets its name once its bytes are durable, and the name is durable before any request
  is answered. Its header says where the previous file ends, so the journal never writes to the
  previous file again: not even if only the new file's name may have reached the disk.
- After a failed write the journal truncates the file, and then the write definitely did not
  happen. It never repeats a failed fsync: it abandons the file, and writes the entries that are
  not durable to a new one.
- If that fails too, it is unknown whether the next start will find those frames:
  `OutcomeUnknown`. The next group tries a new file, so a disk that recovers needs no restart.
- The watermark is a hint for readers in other processes. If it cannot be written in place, a new
  file replaces it; if that fails, it is removed, and such readers read every whole frame. The
  durable rows are acknowledged all the same. Only if an old watermark can be neither replaced nor
  removed, the rows are `OutcomeUnknown`: another process would not see them.
- If the identity file is not the one that this process read or wrote, the journal has another
  owner, or its folder was replaced. It is fenced: it acknowledges no write, and creates and removes
  no file in the folder.
- Frames of an earlier process that are not proved durable are written again before this journal is
  used: the kernel may have dropped their pages and still show them, and an fsync would not fail.
- Every file has its own salt, which its frames repeat: stale bytes of an earlier file with the same
  number are not frames. A truncated file is not written to again, because the bytes cut off have
  the same salt; if it has no frame, the next file takes its number.
- Entries that are not durable are kept in memory, under every policy: at most one file and one
  group.
- Only one thread uses it at a time; `group_commit.py` ensures that.

It knows neither the content of rows nor which of them the lake has.
"""

import secrets
import time as clock
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from thermocline.config import Sync
from thermocline.disk import Disk, FileWriter, OpenFile, Slot, translate_error, translate_errors
from thermocline.errors import OutcomeUnknown, ThermoclineError, Unavailable
from thermocline.hot.wal.folder import (
    DURABLE_NAME,
    IDENTITY_NAME,
    JournalIdentity,
    Watermark,
    encode_watermark,
    file_path,
    read_identity,
    remove_temporaries,
    replace_unsynced,
    temporary_path,
    write_identity,
)
from thermocline.hot.wal.frame import (
    FILE_HEADER_BYTES,
    KIND_ROWS,
    SALT_BITS,
    FileHeader,
    FrameHeader,
    Lsn,
    encode_file_header,
    encode_frame,
)
from thermocline.hot.wal.reader import Frame, JournalTail

FILE_BYTES_MAX = 16 << 20
PROBE_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One write on its way into the journal."""

    table_id: bytes
    schema_id: int
    payload: bytes
    codec: int
    raw_length: int
    kind: int = KIND_ROWS


class Journal:
    """The journal of a process that holds its lock, ready for the next group.

    Once constructed, every frame up to the tail is durable.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        identity: JournalIdentity,
        tail: JournalTail,
        *,
        sync: Sync = Sync.ALWAYS,
        file_bytes_max: int = FILE_BYTES_MAX,
        now_ns: Callable[[], int] = clock.time_ns,
        new_salt: Callable[[], int] = lambda: secrets.randbits(SALT_BITS),
    ) -> None:
        self._disk = disk
        self._folder = folder
        self.identity = identity
        self._sync = sync
        self._file_bytes_max = file_bytes_max
        self._now_ns, self._new_salt = now_ns, new_salt
        self._writer: FileWriter | None = None
        self._number, self._end, self._salt = tail.number, tail.end, 0
        self._durable_end = tail.end
        self._previous_end: int | None = None
        self._next_lsn = tail.next_lsn
        self._durable = Lsn(tail.next_lsn - 1)
        self._unsynced: list[tuple[JournalEntry, Lsn]] = []
        self._slot: Slot | None = None
        self._leftover = tail.leftover
        self._unremoved_numbers: list[int] = []
        self._failed_bytes = 0
        self.watermark_error: OSError | None = None
        self.fence_error: ThermoclineError | None = None
        self._pin: OpenFile | None = None
        self.first_lsn = Lsn(1)  # no frame of the open file is before it
        try:
            if tail.unproved:
                self._rewrite_unproved(tail.unproved)
        except BaseException:
            self._unpin()
            raise
        remove_temporaries(disk, folder)

    @property
    def next_lsn(self) -> Lsn:
        """The lsn of the next entry."""
        return self._next_lsn

    @property
    def number(self) -> int:
        """The number of the file that was last written to."""
        return self._number

    def append(self, entries: Sequence[JournalEntry]) -> list[Lsn]:
        """Write a group of entries and return their lsns.

        When this returns they are durable, if the policy is `always`. Any error but
        `OutcomeUnknown` means that none of them is in the journal.
        """
        self.check_owned()
        placed = [(entry, Lsn(self._next_lsn + i)) for i, entry in enumerate(entries)]
        is_full = self._end >= self._file_bytes_max
        if self._writer is None or is_full or not self.identity.oldest:
            self.rotate()
        self._write(placed)
        self._next_lsn = Lsn(self._next_lsn + len(placed))
        self._unsynced += placed
        if self._sync is Sync.ALWAYS:
            try:
                self.sync()
                self._check_still_owned()
            except ThermoclineError:
                self._next_lsn = placed[0][1]
                self._unsynced.clear()
                raise
        self.publish()
        return [lsn for _, lsn in placed]

    def sync(self) -> None:
        """Make all written entries durable; if the file fails, in a new file."""
        if not self._unsynced:
            return
        error = self._sync_file()
        if error is not None:
            path = file_path(self._folder, self._number)
            try:
                self._open_next()
            except ThermoclineError as second:
                raise _outcome_unknown(path, error) from second
        if self._sync is not Sync.ALWAYS:
            self.publish()

    def rotate(self) -> None:
        """Start a new file; the file and its name are durable when this returns."""
        number = self._number
        if self._writer is not None:
            self.sync()
        if self._number == number:
            self._open_next()
        if not self.identity.oldest:
            self._replace_identity(JournalIdentity(self.identity.journal_id, 1))

    def trim(self, oldest: int) -> None:
        """Remove the files before a number; the identity file gets that number first."""
        oldest = min(oldest, self._number)
        if oldest > self.identity.oldest:
            first = self.identity.oldest
            self._replace_identity(JournalIdentity(self.identity.journal_id, oldest))
            self._unremoved_numbers += range(max(first, 1), oldest)
        elif self._unremoved_numbers:
            self.check_owned()
        for number in list(self._unremoved_numbers):
            with suppress(OSError):  # readers ignore the file; the next trim or start retries
                with suppress(FileNotFoundError):
                    self._disk.unlink(file_path(self._folder, number))
                self._unremoved_numbers.remove(number)

    def publish(self) -> None:
        """Write the watermark: how far readers in other processes may read.

        If it cannot be written it is removed, and `watermark_error` holds the error: the rows are
        durable all the same, and a reader without a watermark reads every whole frame.
        `OutcomeUnknown` if an old watermark stays: a reader would trust it and miss these rows.
        """
        visible = Lsn(self._next_lsn - 1)
        mark = Watermark(
            self.identity.journal_id,
            self._disk.boot_id(),
            visible,
            self._durable,
            self._number,
            self._end,
        )
        path, data = f"{self._folder}/{DURABLE_NAME}", encode_watermark(mark)
        try:
            if self._slot is None:
                self._slot = self._disk.open_slot(path)
            self._slot.put(data)
            self.watermark_error = None
        except OSError as error:
            self._close_slot()
            try:
                # Only these blocks of the disk may be bad: write a new file elsewhere.
                replace_unsynced(self._disk, self._folder, path, data)
                self.watermark_error = None
            except OSError:
                self.watermark_error = error
                try:
                    with suppress(FileNotFoundError):
                        self._disk.unlink(path)
                except OSError:
                    raise _outcome_unknown(path, error) from error

    def probe(self) -> None:
        """Test whether the next group can be written, with the same disk calls.

        When this returns, a file of the size of the last failed write was made durable in the
        folder; the journal has an open file again if a failure closed it; and the watermark was
        written if it was behind. It raises the error that the next group would get.
        """
        self.check_owned()
        temporary = temporary_path(self._folder)
        with translate_errors(temporary):
            try:
                writer = self._disk.create(temporary)
                try:
                    writer.write(bytes(max(PROBE_BYTES, self._failed_bytes)))
                    writer.sync()
                finally:
                    writer.close()
            finally:
                with suppress(OSError):
                    self._disk.unlink(temporary)
        if self._unsynced:
            self.sync()
        if self._writer is None and self.identity.oldest:
            self.rotate()
        if self.watermark_error is not None:
            self.publish()

    def check_owned(self) -> None:
        """Raise `Unavailable` if another process may own the journal; it changes nothing."""
        if self.fence_error is not None:
            raise self.fence_error
        path = f"{self._folder}/{IDENTITY_NAME}"
        with translate_errors(path):
            if self._pin is None:
                self._pin = self._disk.pin(path)
                found = read_identity(self._disk, self._folder)
                is_ours = found is not None and found.journal_id == self.identity.journal_id
            else:
                is_ours = self._pin.is_current()
        if not is_ours:
            self.fence_error = Unavailable(
                "the journal was replaced or taken over while this process wrote it",
                hint="stop this process; if a second process serves the lake, find out which "
                "folder has the rows, and start only one process",
                path=path,
            )
            raise self.fence_error

    def seal(self) -> None:
        """Make all entries durable and start a new file; its header proves where the frames end.

        Without that proof the frames are durable all the same, but damage to the last of them
        would look like a torn end. A file without frames stays open.
        """
        self.sync()
        if self._end > FILE_HEADER_BYTES:
            self._open_next()
            self.publish()

    def close(self) -> None:
        """Make all entries durable and close the files."""
        try:
            self.sync()
            with suppress(ThermoclineError):
                self.seal()
        finally:
            self._retire_writer()
            self._close_slot()
            self._unpin()

    def _close_slot(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            with suppress(OSError):
                slot.close()

    def _unpin(self) -> None:
        pin, self._pin = self._pin, None
        if pin is not None:
            with suppress(OSError):
                pin.close()

    def _check_still_owned(self) -> None:
        """Check after the fsync, before any answer, that the rows are in the folder's journal.

        The rows are written and cannot be withdrawn, so only a certain finding fences the journal.
        If the check itself fails, the lock and the check before the write decide.
        """
        with suppress(ThermoclineError):
            self.check_owned()
        if self.fence_error is not None:
            raise OutcomeUnknown(
                "the rows are durable in a journal that was replaced meanwhile",
                hint=self.fence_error.hint,
                **self.fence_error.facts,
            ) from self.fence_error

    def _replace_identity(self, identity: JournalIdentity) -> None:
        """Replace the identity file; later ownership checks compare with the new one."""
        self.check_owned()
        self._unpin()
        write_identity(self._disk, self._folder, identity)
        self.identity = identity
        with suppress(ThermoclineError):  # the next check pins it
            self.check_owned()

    def _rewrite_unproved(self, frames: Sequence[Frame]) -> None:
        """Write frames of an earlier process again, in a new file."""
        first = frames[0]
        self._unsynced = [(_entry_of(frame), frame.header.lsn) for frame in frames]
        self._end = self._durable_end = first.offset
        self._durable = Lsn(first.header.lsn - 1)
        self._open_next()

    def _encode_entry(self, entry: JournalEntry, lsn: Lsn, salt: int) -> bytes:
        header = FrameHeader(
            entry.kind,
            entry.codec,
            lsn,
            salt,
            self._durable,
            self._now_ns(),
            entry.table_id,
            entry.schema_id,
            len(entry.payload),
            entry.raw_length,
        )
        return b"".join(encode_frame(self.identity.journal_id, header, entry.payload))

    def _write(self, placed: Sequence[tuple[JournalEntry, Lsn]]) -> None:
        assert self._writer is not None
        data = b"".join(self._encode_entry(entry, lsn, self._salt) for entry, lsn in placed)
        try:
            self._writer.write(data)
        except OSError as error:
            self._failed_bytes = len(data)
            raise self._undo_failed_write(error) from error
        self._end += len(data)

    def _undo_failed_write(self, error: OSError) -> ThermoclineError:
        """Cut off a partly written group; return an error that says whether that is certain."""
        assert self._writer is not None
        path = file_path(self._folder, self._number)
        try:
            self._writer.cut(self._end)
        except OSError:
            self._give_up()
            return _outcome_unknown(path, error)
        if self._sync_file() is not None:
            return _outcome_unknown(path, error)
        # The disk may still hold the bytes cut off, and show them where the next group is torn.
        self._give_up()
        return translate_error(error, path)

    def _sync_file(self) -> OSError | None:
        """Fsync the file; on failure abandon the file and return the error."""
        if self._writer is None:
            return OSError("an earlier write or sync of this file failed")
        try:
            self._writer.sync()
        except OSError as error:
            self._give_up()
            return error
        self._note_durable()
        return None

    def _note_durable(self) -> None:
        """Record that every frame with an lsn is durable in a file."""
        self._durable_end = self._end
        self._durable = Lsn(self._next_lsn - 1)
        self._unsynced.clear()

    def _give_up(self) -> None:
        """Stop writing to this file; its durable part ends at the last successful fsync."""
        self._retire_writer()
        self._end = self._durable_end

    def _open_next(self) -> None:
        """Start a new file with all entries that are not durable; then they are durable."""
        self.check_owned()
        with translate_errors(self._folder):
            self._remove_leftover()
        number, end, salt = self._number + 1, self._durable_end, self._new_salt()
        if self._is_bare and self._previous_end is not None:
            number, end = self._number, self._previous_end
        path = file_path(self._folder, number)
        first = self._unsynced[0][1] if self._unsynced else self._next_lsn
        header = FileHeader(self.identity.journal_id, number, first, salt, end)
        frames = [self._encode_entry(entry, lsn, salt) for entry, lsn in self._unsynced]
        data = b"".join([encode_file_header(header), *frames])
        with translate_errors(path):
            writer = self._create_file(path, data)
        self._retire_writer()
        self._writer, self._number, self._end, self._salt = writer, number, len(data), salt
        self._previous_end, self.first_lsn = end, first
        self._note_durable()

    @property
    def _is_bare(self) -> bool:
        """Whether the file was abandoned before it had a durable frame."""
        is_empty = self._durable_end == FILE_HEADER_BYTES and not self._unsynced
        return self._writer is None and is_empty

    def _create_file(self, path: str, data: bytes) -> FileWriter:
        """Return a new file with these bytes; the bytes and the name are durable.

        The name comes last: so no start finds a file without a whole header, and it finds moved
        entries in the old file or in the new one, whenever the process dies.
        """
        temporary = temporary_path(self._folder)
        writer: FileWriter | None = None
        try:
            writer = self._disk.create(temporary)
            writer.write(data)
            writer.sync()
            self._link(temporary, path)
        except OSError:
            if writer is not None:
                with suppress(OSError):
                    writer.close()
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise
        with suppress(OSError):  # the next start removes it
            self._disk.unlink(temporary)
        return writer

    def _link(self, temporary: str, path: str) -> None:
        if path == file_path(self._folder, self._number):
            # A start may find either file: no request was acknowledged from the old one.
            self._disk.rename(temporary, path)
            self._disk.sync_folder(self._folder)
            return
        try:
            self._disk.link(temporary, path)
            self._disk.sync_folder(self._folder)
        except FileExistsError:
            raise  # another process made it: keep it
        except OSError:
            # Order matters: the next start may find the name, and with it the end of the previous
            # file; the journal must write nothing after that end.
            self._give_up()
            self._leftover = path
            with suppress(OSError):
                self._remove_leftover()
            raise

    def _retire_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # Its bytes are durable, or are copied to the next file: a failed close loses nothing.
            with suppress(OSError):
                writer.close()

    def _remove_leftover(self) -> None:
        """Remove an unfinished file: the next file needs its name."""
        if self._leftover is not None:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._leftover)
            self._leftover = None


def _entry_of(frame: Frame) -> JournalEntry:
    header = frame.header
    return JournalEntry(
        header.table_id,
        header.schema_id,
        frame.payload,
        header.codec,
        header.raw_length,
        header.kind,
    )


def _outcome_unknown(path: str, error: OSError) -> OutcomeUnknown:
    return OutcomeUnknown(
        "the disk failed, and it is unknown whether a restart will find the rows",
        hint="check the disk; send the rows again with the same idempotency key: without one "
        "they may be stored twice",
        path=path,
        error=str(error),
    )
