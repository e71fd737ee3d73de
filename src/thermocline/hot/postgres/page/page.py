"""The request and the answer of a page of entities.

In:   a filter, an order, fields, the cursor of the previous page
Out:  a `Page`: entities in order, the cursor of the next page, the referenced entities

- Only values, so that a client can import them without the driver. `page_query.py` reads pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thermocline.format.argument import check_flag, check_text, list_names
from thermocline.hot.postgres.page.filter import Filter, as_filter
from thermocline.hot.postgres.store.operation import StoredEntity


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The request of a page. `sort` names fields, `-` before one for descending."""

    filter: Filter | None = None
    sort: tuple[str, ...] = ()
    fields: Sequence[str] | None = None
    after: str | None = None
    limit: int = 100
    refs: tuple[str, ...] = ()
    with_total: bool = False


def page_request(
    filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002
    sort: str | Sequence[str] = (),
    fields: str | Sequence[str] | None = None,
    after: str | None = None,
    limit: int = 100,
    refs: str | Sequence[str] = (),
    *,
    with_total: bool = False,
) -> PageRequest:
    """Return the request with these arguments; `Invalid` for values of a wrong kind."""
    return PageRequest(
        as_filter(filter),
        list_names(sort, "sort"),
        None if fields is None else list_names(fields, "fields"),
        None if after is None else check_text(after, "after"),
        limit,  # `page_query.py` checks it
        list_names(refs, "refs"),
        check_flag(with_total, "with_total"),
    )


@dataclass(frozen=True, slots=True)
class Page:
    """Entities in order; `after` is the cursor of the next page, None for the last page.

    `refs` has the referenced entities by type and key; one that is also on the page may be the
    same object. `total` is None unless requested.
    """

    entities: list[StoredEntity]
    after: str | None = None
    total: int | None = None
    refs: dict[str, dict[str, StoredEntity]] = field(default_factory=dict)
