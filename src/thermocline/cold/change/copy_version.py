"""Copies one version of a table to a new table: its segments and their sidecars, in one commit.

In:   a table and one of its states; the folder of a table that does not exist yet
Out:  the state of the new table at its first version

- Segments never change, so the copy shares their bytes through hard links where the file system
  has them. Each file's bytes are compared with the checksum in the log.
- The copy has a new id and begins at version 1. It has no history, no marks of hot sources
  and no idempotency keys: nothing that was written to the source counts as written to the copy.
- Everything is durable before the commit, and the commit has everything: a crash leaves a folder
  without a table.
"""

from dataclasses import replace

from thermocline.cold.segment.stage import new_id
from thermocline.cold.segment.token_filter import copy_tokens
from thermocline.cold.storage.storage import Storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Corruption
from thermocline.format.layout import Version
from thermocline.format.log.action import Action, AddSegment, Segment, SetTable
from thermocline.format.log.commit import Commit
from thermocline.format.log.state import TableState


def copy_version(
    source: ColdTable, state: TableState, storage: Storage, target: ColdTable
) -> TableState:
    """Make `target`, in the folder of `storage`, a table with the rows of a state of `source`.

    The caller keeps the state's files from being vacuumed meanwhile.
    """
    storage.probe()
    segments = list(state.segments)
    # Order matters: the sidecars are first, because linked segments keep their old times, and a
    # vacuum takes a folder in which nothing is young for a leftover.
    for segment in {segment.coverage_path: segment for segment in segments}.values():
        storage.put(segment.coverage_path, source.index.sidecar(state, segment))
    segments = [copy_tokens(source.storage, segment, storage) for segment in segments]
    for segment in segments:
        _take_segment(source, segment, storage)
    first = Commit(
        Version(1),
        Version(0),
        new_id(),
        target.log.now(),
        "copy",
        (*_copied_schemas(state), *(AddSegment(segment) for segment in segments)),
        {"source": state.spec.table_id, "version": state.version},
    )
    landed = target.log.try_commit(first)
    if landed is None:
        raise Conflict("there is a table in the new folder", hint="try again", root=storage.root)
    copied = target.log.advance_head(None, landed)
    target.index.write_shortcut(copied)
    return copied


def _copied_schemas(state: TableState) -> tuple[Action, ...]:
    """Return the table's description with each of its schemas, the present one last."""
    spec = replace(state.spec, table_id=new_id())
    older = sorted(set(state.schemas) - {state.schema_id})
    return tuple(SetTable(spec, one, state.schemas[one]) for one in (*older, state.schema_id))


def _take_segment(source: ColdTable, segment: Segment, storage: Storage) -> None:
    located = source.storage.locate(segment.path, segment.file_size, segment.checksum)
    taken = storage.take(located, segment.path, link=True)
    if (taken.size_bytes, taken.checksum) != (segment.file_size, segment.checksum):
        raise Corruption(
            "the bytes of a segment changed while it was copied",
            hint="run fsck on the table that is copied",
            path=segment.path,
        )
