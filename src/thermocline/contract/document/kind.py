"""Maps a schema to a column: its kind, its Arrow type and its PostgreSQL type.

In:   a schema with its references written out
Out:  a `ColumnKind`: a tree of scalars, structs, lists and maps, whose leaves may be JSON text

- A kind holds the canonical form of every value that its schema accepts, exactly.
- A value without one type (`oneOf`, mixed types, tuples, recursion, open objects) is JSON text.
- `not`, `if` and `oneOf` only validate: they never choose the type of a column.
- A `number` is a double. Money is `"x-type": "decimal(p,s)"`.
"""

import re
from dataclasses import dataclass

import pyarrow as pa

from thermocline.contract.schema.pointer import Refusal, pointer_of
from thermocline.contract.schema.subschema import Node, Steps
from thermocline.contract.schema.view import SchemaView, view_of

DIGITS_MAX = 38
KIND_DEPTH_MAX = 12
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_DECIMAL = re.compile(r"^decimal\((\d{1,2}), ?(\d{1,2})\)$")
_TEXT_FORMATS = {"uuid": "uuid", "date": "date", "date-time": "timestamp"}
_PG_INTEGER = {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}
JSON_NAME = "json"
_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_PLAIN = {
    "string": pa.string(),
    "uuid": pa.string(),
    "json": pa.string(),
    "enum": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "boolean": pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class KindField:
    """One property of a struct."""

    name: str
    kind: "ColumnKind"
    is_required: bool


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """The type of a column, or of a part of one.

    `bits` is the width of an integer or a float; `digits` and `scale` are those of a decimal.
    With `is_text`, a decimal is written as a string; with `nullable`, the value may be null; with
    `is_packed`, the text of an enum is stored in a dictionary.
    """

    name: str
    nullable: bool = False
    bits: int = 0
    digits: int = 0
    scale: int = 0
    is_text: bool = False
    fields: tuple[KindField, ...] = ()
    item: "ColumnKind | None" = None
    is_packed: bool = False

    @property
    def inner(self) -> "ColumnKind":
        """The kind of a list's items or of a map's values."""
        assert self.item is not None
        return self.item

    @property
    def type(self) -> pa.DataType:
        """The Arrow type; every nested field may be null."""
        match self.name:
            case "enum" if self.is_packed:
                return pa.dictionary(pa.int32(), pa.string())
            case "decimal":
                return pa.decimal128(self.digits, self.scale)
            case "integer":
                return _INTEGERS[self.bits]
            case "number":
                return pa.float32() if self.bits == 32 else pa.float64()
            case "struct":
                return pa.struct([pa.field(part.name, part.kind.type) for part in self.fields])
            case "list":
                return pa.list_(pa.field("item", self.inner.type))
            case "map":
                return pa.map_(pa.string(), pa.field("value", self.inner.type))
        return _PLAIN[self.name]

    @property
    def postgres_type(self) -> str:
        """The type of a hot column of this kind; `jsonb` for kinds that are not scalar."""
        match self.name:
            case "string" | "enum":
                return "text"
            case "uuid" | "date" | "boolean":
                return self.name
            case "timestamp":
                return "timestamptz"
            case "decimal":
                return f"numeric({self.digits},{self.scale})"
            case "integer":
                return _PG_INTEGER[self.bits]
            case "number":
                return "real" if self.bits == 32 else "double precision"
        return "jsonb"

    @property
    def is_scalar(self) -> bool:
        """Whether its values are single values that can be compared and indexed."""
        return self.name not in ("struct", "list", "map", "json")

    def parts(self) -> "tuple[ColumnKind, ...]":
        """Return the directly nested kinds."""
        return tuple(part.kind for part in self.fields) + ((self.item,) if self.item else ())

    def has_kind(self, name: str) -> bool:
        """Tell whether this kind or a nested kind has this name."""
        return self.name == name or any(part.has_kind(name) for part in self.parts())


@dataclass(slots=True)
class KindMapping:
    """Maps the schemas of one contract to kinds, and collects `refusals`."""

    refusals: list[Refusal]

    def kind_of(self, node: Node, at: Steps, depth: int = 0) -> ColumnKind:
        """Return the kind of a schema; add a refusal for an `x-type` that does not fit it."""
        view = view_of(node)
        plain = ColumnKind(JSON_NAME, nullable=view.is_nullable)
        if view.x_type == JSON_NAME or depth > KIND_DEPTH_MAX:
            return plain
        match view.type:
            case "string":
                return self._text_kind(view, at, depth)
            case "integer" | "number":
                return self._number_kind(view, at)
            case "boolean":
                self._check_no_x_type(view, at)
                return ColumnKind("boolean", nullable=view.is_nullable)
            case "array":
                self._check_no_x_type(view, at)
                if view.items is None or view.is_mixed_array:
                    return plain
                item = self.kind_of(view.items, (*at, "items"), depth + 1)
                return ColumnKind("list", nullable=view.is_nullable, item=item)
            case "object":
                self._check_no_x_type(view, at)
                return self._object_kind(view, at, depth)
        self._check_no_x_type(view, at)
        return plain

    def _text_kind(self, view: SchemaView, at: Steps, depth: int) -> ColumnKind:
        nullable = view.is_nullable
        if view.x_type:
            if found := self._parse_decimal(view.x_type, at):
                return ColumnKind("decimal", nullable, 0, *found, is_text=True)
            if view.x_type == "timestamp(us)" and view.format == "date-time":
                return ColumnKind("timestamp", nullable)
            if view.x_type != "string":
                self._refuse_x_type(view, at)
            return ColumnKind("string", nullable)
        if view.values is not None:
            return ColumnKind("enum", nullable, is_packed=depth == 0)
        return ColumnKind(_TEXT_FORMATS.get(view.format, "string"), nullable)

    def _number_kind(self, view: SchemaView, at: Steps) -> ColumnKind:
        nullable, word = view.is_nullable, view.x_type
        if word and (found := self._parse_decimal(word, at)):
            return ColumnKind("decimal", nullable, 0, *found)
        if view.type == "integer":
            if word and word not in INTEGER_BITS:
                self._refuse_x_type(view, at)
            return ColumnKind("integer", nullable, INTEGER_BITS.get(word, 64))
        if word and word not in ("float", "double"):
            self._refuse_x_type(view, at)
        return ColumnKind("number", nullable, 32 if word == "float" else 64)

    def _parse_decimal(self, word: str, at: Steps) -> tuple[int, int] | None:
        if not (found := _DECIMAL.match(word)):
            return None
        digits, scale = int(found.group(1)), int(found.group(2))
        if not 0 < digits <= DIGITS_MAX or scale > digits:
            reason = f"a decimal has 1 to {DIGITS_MAX} digits, and at most as many after the point"
            self.refusals.append(Refusal(pointer_of((*at, "x-type")), reason))
            return 38, 0
        return digits, scale

    def _object_kind(self, view: SchemaView, at: Steps, depth: int) -> ColumnKind:
        nullable = view.is_nullable
        if view.is_mixed_object:
            return ColumnKind(JSON_NAME, nullable)
        if not view.properties:
            if not isinstance(view.others, dict) or view.names_are_limited:
                return ColumnKind(JSON_NAME, nullable)
            item = self.kind_of(view.others, (*at, "additionalProperties"), depth + 1)
            return ColumnKind("map", nullable, item=item)
        if view.others is not False:
            return ColumnKind(JSON_NAME, nullable)
        self.check_names(list(view.properties), at)
        fields = tuple(
            KindField(
                name,
                self.kind_of(inner, (*at, "properties", name), depth + 1),
                name in view.required,
            )
            for name, inner in view.properties.items()
        )
        return ColumnKind("struct", nullable, fields=fields)

    def check_names(self, names: list[str], at: Steps) -> None:
        """Refuse names that no column can have, and names that differ only in case."""
        seen: dict[str, str] = {}
        for name in names:
            place = pointer_of((*at, "properties", name))
            if not name or len(name) > 255 or "\x00" in name:
                self.refusals.append(Refusal(place, "a column's name has 1 to 255 characters"))
            first = seen.setdefault(name.lower(), name)
            if first != name:
                reason = f"the same column name as {first}: SQL ignores the case of names"
                self.refusals.append(Refusal(place, reason))

    def _check_no_x_type(self, view: SchemaView, at: Steps) -> None:
        if view.x_type:
            self._refuse_x_type(view, at)

    def _refuse_x_type(self, view: SchemaView, at: Steps) -> None:
        words = "decimal(p,s), int8 to int64, float, double, timestamp(us), string, json"
        reason = f"not an x-type of {view.type or 'a value without one type'}; use one of {words}"
        self.refusals.append(Refusal(pointer_of((*at, "x-type")), reason))
