"""The origin of telemetry: a resource and a scope as the columns that all tables share.

In:   `ResourceMetrics`, `ScopeMetrics` and the same messages of the other signals
Out:  `Origin`: the values of `tables.ORIGIN`, in their order, and the identity of a stream
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thermocline.ingest.otlp.value import ValueRenderer, dump

NS_MAX = (1 << 63) - 1
TIME_BEYOND = "a time is beyond int64"


@dataclass(frozen=True, slots=True)
class Origin:
    """The columns of one resource and scope."""

    columns: tuple[Any, ...]
    identity: tuple[str, ...]


def scopes_with_origin(
    groups: Any, scopes_field: str, values: ValueRenderer
) -> Iterator[tuple[Origin, Any]]:
    """Yield every scope message of a request together with its origin."""
    for group in groups:
        resource = resource_columns(group.resource, group.schema_url, values)
        scopes = getattr(group, scopes_field)
        if not scopes:
            values.note_unknown(_unknown_fields(group))
        for scope in scopes:
            yield join_origin(resource, scope_columns(scope.scope, scope.schema_url, values)), scope


def resource_columns(resource: Any, schema_url: str, values: ValueRenderer) -> tuple[Any, ...]:
    """Return the columns of a resource, in the order of `tables.ORIGIN`."""
    found, dropped = values.attribute_values(resource.attributes)
    return (
        _word_text(found.get("service.name")),
        _word_text(found.get("host.name")),
        dump(found),
        resource.dropped_attributes_count + dropped,
        _entities_text(resource.entity_refs),
        values.optional_text(schema_url),
    )


def scope_columns(scope: Any, schema_url: str, values: ValueRenderer) -> tuple[Any, ...]:
    """Return the columns of a scope, in the order of `tables.ORIGIN`."""
    attributes, dropped = values.attributes_and_dropped(scope.attributes)
    return (
        values.optional_text(scope.name),
        values.optional_text(scope.version),
        attributes,
        scope.dropped_attributes_count + dropped,
        values.optional_text(schema_url),
    )


def join_origin(resource: tuple[Any, ...], scope: tuple[Any, ...]) -> Origin:
    """Return the origin of a resource and a scope.

    Counts of dropped attributes, entities and the resource's schema are not part of the identity.
    """
    name, version, attributes, _, schema_url = scope
    identity = (resource[2], name or "", version or "", schema_url or "", attributes)
    return Origin((*resource, *scope), identity)


def digest(*parts: str) -> int:
    """Return a 64-bit hash of texts; the length before each text keeps their boundaries."""
    return digest_bytes(*[part.encode() for part in parts])


def digest_bytes(*parts: bytes) -> int:
    """Return the same hash for encoded texts."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return int.from_bytes(hashed.digest(), "little")


def valid_identifier(value: bytes, length: int) -> bytes | None:
    """Return an identifier, or None when it has another length or is all zeros."""
    return value if len(value) == length and any(value) else None


def is_foreign(item: Any) -> bool:
    """Tell whether an item is of another signal: it has a known field of a wrong wire type."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    known = item.DESCRIPTOR.fields_by_number
    unknown: Any = UnknownFieldSet(item)  # iterable, which its stubs do not declare
    return any(field.field_number in known for field in unknown)


def _unknown_fields(message: Any) -> str:
    """Return the fields of a message that this version does not know, as a text."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown: Any = UnknownFieldSet(message)
    return ", ".join(f"field {number}" for number in sorted({f.field_number for f in unknown}))


def _word_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else dump(value)


def _entities_text(references: Any) -> str | None:
    if not references:
        return None
    return dump(
        [
            {
                "type": one.type,
                "schemaUrl": one.schema_url,
                "idKeys": list(one.id_keys),
                "descriptionKeys": list(one.description_keys),
            }
            for one in references
        ]
    )
