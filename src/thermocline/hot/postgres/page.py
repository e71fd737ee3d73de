"""What is asked for when a page of entities is, and what is answered.

In:   a filter, an order, fields, the cursor of the page before
Out:  a `Page`: entities in order, the cursor of the next page, the entities referred to

- Values alone: a client has them without a driver. `page_query.py` reads pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from thermocline.hot.postgres.filter import Filter
from thermocline.hot.postgres.operation import Entity


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What is asked for. `sort` names fields, `-` before one for descending."""

    filter: Filter | None = None
    sort: tuple[str, ...] = ()
    fields: Sequence[str] | None = None
    after: str | None = None
    limit: int = 100
    refs: tuple[str, ...] = ()
    with_total: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Entities in order; `after` is the cursor of the next page, None when this is the last.

    `refs` has the entities referred to by type and key; one that is on the page may be the same
    object there. `total` is None unless asked for.
    """

    entities: list[Entity]
    after: str | None = None
    total: int | None = None
    refs: dict[str, dict[str, Entity]] = field(default_factory=dict)
