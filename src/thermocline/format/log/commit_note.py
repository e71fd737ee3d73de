"""What a commit records besides its changes to segments: losses, requests, entity changes.

In:   values
Out:  their JSON, and back
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from thermocline.format import instant
from thermocline.format.instant import TimeNs

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NoteHole:
    """Writes `first` to `last` of a hot source were lost: coverage may lack their rows.

    They were written after `after` and before `before`; None where that is not known.
    """

    name: ClassVar[str] = "NoteHole"
    source: str
    first: int
    last: int
    after: TimeNs | None = None
    before: TimeNs | None = None


@dataclass(frozen=True, slots=True)
class NoteRequests:
    """This version contains the rows of these idempotency keys; each with its number of rows."""

    name: ClassVar[str] = "NoteRequests"
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NoteFlush:
    """This version contains these changes of an entity store, all made by `as_of`.

    `changes` are their ids as `format/log/change_ids.py` encodes them; empty in a commit that only
    rewrites segments and changes no row. `epoch` is the number that the
    store gave to the export attempt.
    """

    name: ClassVar[str] = "NoteFlush"
    source: str
    epoch: int
    as_of: TimeNs
    changes: str = ""


Note: TypeAlias = NoteHole | NoteRequests | NoteFlush


def encode_note(note: Note) -> Json:
    """Return a note as JSON."""
    match note:
        case NoteHole():
            return encode_hole(note)
        case NoteRequests(requests):
            return dict(requests)
        case NoteFlush(source, epoch, as_of, changes):
            written = instant.format_instant(as_of)
            return {"source": source, "epoch": epoch, "as_of": written, "changes": changes}


def decode_note(name: str, body: Json) -> Note:
    """Return the note of a name from its JSON."""
    if name == NoteHole.name:
        return decode_hole(body)
    if name == NoteRequests.name:
        return NoteRequests({str(key): int(rows) for key, rows in body.items()})
    as_of = instant.parse_instant(body["as_of"])
    return NoteFlush(str(body["source"]), int(body["epoch"]), as_of, str(body["changes"]))


def encode_hole(hole: NoteHole) -> Json:
    """Return the note as JSON."""
    times = {"after": hole.after, "before": hole.before}
    return {
        "source": hole.source,
        "first": hole.first,
        "last": hole.last,
        **{
            name: None if time is None else instant.format_instant(time)
            for name, time in times.items()
        },
    }


def decode_hole(body: Json) -> NoteHole:
    """Return the note of its JSON."""
    times = {
        name: None if body[name] is None else instant.parse_instant(body[name])
        for name in ("after", "before")
    }
    return NoteHole(str(body["source"]), int(body["first"]), int(body["last"]), **times)
