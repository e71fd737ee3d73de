"""Verbs for a journal under faults: steps of a story, a ledger of what was answered, a check.

A ledger knows of every entry whether it was answered, refused for certain, or left open, and in
which file it went. `check` is the promise in one place: what was answered is found once, in order,
under its lsn; what was refused is not found; what is open is found at most once and whole.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fixtures.sim_disk import SimDisk
from thermocline.config import Sync
from thermocline.disk import Disk
from thermocline.errors import OutcomeUnknown, ThermoclineError
from thermocline.hot.wal.folder import DURABLE_NAME, JournalIdentity, write_identity
from thermocline.hot.wal.frame import CODEC_NONE
from thermocline.hot.wal.journal import Journal, JournalEntry
from thermocline.hot.wal.reader import Frame, JournalReader, JournalTail

FOLDER = "/journal"
JOURNAL_ID = b"the journal's id"
TABLE_ID = b"the table's own "
FILE_BYTES_MAX = 600

Step = tuple[str, int]
JournalOf = Callable[..., Journal]


def entry(payload: bytes) -> JournalEntry:
    """Return an entry; its payload is what tests know it by."""
    return JournalEntry(TABLE_ID, 7, payload, CODEC_NONE, len(payload))


def journal_disk() -> SimDisk:
    """Return a disk with a journal on it that has no files yet."""
    disk = SimDisk([FOLDER])
    write_identity(disk, FOLDER, JournalIdentity(JOURNAL_ID))
    return disk


def frames(disk: Disk, folder: str = FOLDER) -> list[Frame]:
    """Return the frames a start would find; their lsns are dense."""
    found = list(JournalReader(disk, folder).frames())
    lsns = [frame.header.lsn for frame in found]
    assert lsns == list(range(lsns[0], lsns[0] + len(lsns))) if lsns else True
    return found


def payloads(disk: Disk, folder: str = FOLDER) -> list[bytes]:
    """Return what a start would find."""
    return [frame.payload for frame in frames(disk, folder)]


def tail(disk: Disk, folder: str = FOLDER) -> JournalTail:
    """Return where a start would go on."""
    reader = JournalReader(disk, folder)
    list(reader.frames())
    assert reader.tail is not None
    return reader.tail


def opened(
    disk: Disk,
    kind: JournalOf = Journal,
    *,
    folder: str = FOLDER,
    sync: Sync = Sync.ALWAYS,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Journal:
    """Return the journal as the next process opens it."""
    reader = JournalReader(disk, folder)
    list(reader.frames())
    assert reader.tail is not None
    clock = iter(range(10**9, 10**12))
    return kind(
        disk,
        folder,
        reader.identity,
        reader.tail,
        sync=sync,
        file_bytes_max=file_bytes_max,
        now_ns=lambda: next(clock),
    )


@dataclass
class Ledger:
    """What a client knows: of each payload its lsn and its file once answered."""

    answered: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    lasting: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    open: set[bytes] = field(default_factory=set)
    trimmed_before: int = 0
    watermarks: list[bytes] = field(default_factory=list)
    serial: int = 0

    def copy(self) -> "Ledger":
        """Return a ledger that goes its own way."""
        kept = {name: type(value)(value) for name, value in vars(self).items()}
        return Ledger(**kept)

    def names(self, count: int) -> list[bytes]:
        """Return payloads that nobody had; one in five lies in several sectors of the disk."""
        self.serial += count
        serials = range(self.serial - count, self.serial)
        return [b"entry %d, " % n * (80 if n % 5 == 3 else 1) for n in serials]

    def must_have(self, *, is_power_cut: bool) -> dict[bytes, int]:
        """Return what has to be found, with its lsn."""
        return {
            name: lsn
            for name, (lsn, number) in self.answered.items()
            if number >= self.trimmed_before and (name in self.lasting or not is_power_cut)
        }


class Story:
    """A process that works on a journal until a fault ends it; `ledger` outlives it."""

    def __init__(
        self,
        disk: SimDisk,
        ledger: Ledger,
        kind: JournalOf = Journal,
        *,
        sync: Sync = Sync.ALWAYS,
    ) -> None:
        self.disk, self.ledger, self._sync = disk, ledger, sync
        found = frames(disk)
        self.journal = opened(disk, kind, sync=sync)
        # Only now may a reader see them: before, a second death may still lose what was open.
        settle(found, ledger)

    def play(self, steps: Sequence[Step]) -> None:
        """Take the steps one by one; errors of this package are noted, death goes through."""
        for verb, count in steps:
            act = {"append": self.append, "trim": self.trim}.get(verb)
            try:
                if act is not None:
                    act(count)
                else:
                    getattr(self.journal, verb)()
                    self._lasts()
            except ThermoclineError:
                continue

    def append(self, count: int) -> None:
        """Append a group and write down how it went."""
        names = self.ledger.names(count)
        self.ledger.open |= set(names)
        first = self.journal.next_lsn
        try:
            lsns = self.journal.append([entry(name) for name in names])
        except OutcomeUnknown:
            raise
        except ThermoclineError:
            self.ledger.open -= set(names)
            self.ledger.refused |= set(names)
            raise
        assert lsns == list(range(first, first + count))
        self.ledger.open -= set(names)
        for name, lsn in zip(names, lsns, strict=True):
            self.ledger.answered[name] = (lsn, self.journal.number)
        if self._sync is Sync.ALWAYS:
            self._lasts()
        if self.journal.watermark_error is None:
            self.ledger.watermarks.append(self.disk._visible(f"{FOLDER}/{DURABLE_NAME}"))

    def trim(self, behind: int) -> None:
        """Trim all files but the last ones."""
        oldest = self.journal.number - behind
        self.ledger.trimmed_before = max(self.ledger.trimmed_before, oldest)
        self.journal.trim(oldest)

    def _lasts(self) -> None:
        self.ledger.lasting |= set(self.ledger.answered)


def check(found: Sequence[Frame], ledger: Ledger, *, is_power_cut: bool) -> None:
    """Assert the promise for what a start found."""
    lsns = {frame.payload: frame.header.lsn for frame in found}
    assert len(lsns) == len(found), "an entry is found twice"
    must = ledger.must_have(is_power_cut=is_power_cut)
    for name, lsn in must.items():
        assert lsns.get(name) == lsn, f"answered and lost, or moved: {name!r}"
    may = ledger.answered.keys() | ledger.open
    assert lsns.keys() <= may, f"found and never written, or refused: {lsns.keys() - may}"


def settle(found: Sequence[Frame], ledger: Ledger) -> None:
    """Note that a start has decided: what it found lasts, and the rest never comes back.

    Not even where a later cut loses bytes and the disk shows those of an earlier file of the same
    number: such a frame has another salt.
    """
    present = {frame.payload: frame for frame in found}
    forget_what_may_be_lost(found, ledger)
    for name, frame in present.items():
        ledger.answered.setdefault(name, (frame.header.lsn, frame.number))
    ledger.lasting = set(present)
    ledger.refused |= ledger.open - present.keys()
    ledger.open = set()


def forget_what_may_be_lost(found: Sequence[Frame], ledger: Ledger) -> None:
    """Leave open what was answered and is not found: a laxer policy, or a trimmed file."""
    present = {frame.payload for frame in found}
    for name in ledger.answered.keys() - present:
        number = ledger.answered.pop(name)[1]
        assert name not in ledger.lasting or number < ledger.trimmed_before
        ledger.open.add(name)


def random_story(rng: random.Random, *, laxly: bool = False) -> list[Step]:
    """Return a few steps: mostly appends, with rotations, trims and syncs between them."""
    steps: list[Step] = []
    for _ in range(rng.randint(4, 6)):
        verb = rng.choices(["append", "rotate", "trim", "sync"], [7, 1, 1, 3 if laxly else 0])[0]
        steps.append((verb, rng.randint(1, 3) if verb == "append" else rng.randint(0, 1)))
    return [("append", 1), *steps, *([("close", 0)] if rng.random() < 0.5 else [])]
