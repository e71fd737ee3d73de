"""What any process needs to stage segments in a table's folder.

In:   the table's root, spec and columns, and the tag of the work
Out:  a `Stage`, in this process or in another one
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thermocline.cold.segment.stage import Stage
from thermocline.cold.storage.open_storage import open_storage
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The table that workers write to.

    `schema` has the table's columns as of the commit to be made; `tag` is the prefix of the names
    of the staged files.
    """

    root: str
    spec: TableSpec
    schema: Schema
    tag: str
    options: Mapping[str, str] = field(default_factory=dict)

    def stage(self) -> Stage:
        """Return the stage for new segments, in any process."""
        return Stage(open_storage(self.root, self.options or None), workers=1, tag=self.tag)
