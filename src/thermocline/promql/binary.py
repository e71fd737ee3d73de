"""Operations on two values: numbers and vectors, with the matching of series.

In:   two values for each step
Out:  their arithmetic, comparison or set operation

- Series are paired once by their matching labels; the operation is then one on all pairs and steps.
- What must be unique must be so at each step: two series that are never there together may share
  their matching labels.
"""

from collections.abc import Callable

import numpy as np

from thermocline.errors import Invalid
from thermocline.promql.labels import (
    NAME,
    Labels,
    drop_labels,
    drop_name,
    grouping_key,
    keep_labels,
    labels_text,
    make_labels,
    value_of,
)
from thermocline.promql.syntax import Binary, Matching
from thermocline.promql.values import (
    Bools,
    Floats,
    Ints,
    SameLabels,
    Scalar,
    SeriesVector,
    empty_vector,
    make_vector,
    merge_same_labels,
)

ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
COMPARISONS: dict[str, Callable[[Floats, Floats], Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
PAIRS_MAX = 1_000_000


def combine(node: Binary, left: Scalar | SeriesVector, right: Scalar | SeriesVector):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Return the operation on two values."""
    with np.errstate(all="ignore"):
        if isinstance(left, Scalar) and isinstance(right, Scalar):
            values, keeps = _operate(node.operator, left.values, right.values)
            return Scalar(values if keeps is None else keeps.astype(np.float64))
        if isinstance(left, Scalar):
            assert isinstance(right, SeriesVector)
            return _with_scalar(node, right, left.values, is_swapped=True)
        if isinstance(right, Scalar):
            return _with_scalar(node, left, right.values, is_swapped=False)
        if node.operator in _SETS:
            return _SETS[node.operator](node.matching, left, right)
        return _match(node, left, right)


def _operate(operator: str, left: Floats, right: Floats) -> tuple[Floats, Bools | None]:
    """Return the values of an operation, and for a comparison which cells it keeps."""
    if operator in ARITHMETIC:
        return ARITHMETIC[operator](left, right), None
    return left, COMPARISONS[operator](left, right)


def _with_scalar(
    node: Binary, vector: SeriesVector, numbers: Floats, *, is_swapped: bool
) -> SeriesVector:
    one, other = (numbers, vector.values) if is_swapped else (vector.values, numbers)
    values, keeps = _operate(node.operator, one, other)
    if keeps is None:
        return make_vector(vector.labels, values, vector.has, drops=True)
    if node.returns_bool:
        return make_vector(vector.labels, keeps.astype(np.float64), vector.has, drops=True)
    made = make_vector(vector.labels, vector.values, vector.has & keeps, drops=vector.drops)
    return SeriesVector(made.labels, made.values, made.has, made.drops, vector.is_ordered)


def _keys(matching: Matching) -> Callable[[Labels], Labels]:
    return grouping_key(matching.names, by=matching.is_on)


def _by_key(vector: SeriesVector, key: Callable[[Labels], Labels]) -> dict[Labels, list[int]]:
    found: dict[Labels, list[int]] = {}
    for place, labels in enumerate(vector.labels):
        found.setdefault(key(labels), []).append(place)
    return found


def _presence(vector: SeriesVector, other: SeriesVector, key: Callable[[Labels], Labels]) -> Bools:
    """Return where a series of `other` with the same matching labels has a sample."""
    found = np.zeros(vector.has.shape, dtype=bool)
    by_key = _by_key(other, key)
    for place, labels in enumerate(vector.labels):
        members = by_key.get(key(labels))
        if members:
            found[place] = other.has[members].any(axis=0)
    return found


def _and(matching: Matching, left: SeriesVector, right: SeriesVector) -> SeriesVector:
    has = left.has & _presence(left, right, _keys(matching))
    return make_vector(left.labels, left.values, has, drops=left.drops)


def _unless(matching: Matching, left: SeriesVector, right: SeriesVector) -> SeriesVector:
    has = left.has & ~_presence(left, right, _keys(matching))
    return make_vector(left.labels, left.values, has, drops=left.drops)


def _or(matching: Matching, left: SeriesVector, right: SeriesVector) -> SeriesVector:
    has = right.has & ~_presence(right, left, _keys(matching))
    joined = make_vector(
        left.labels + right.labels,
        np.concatenate([left.values, right.values]),
        np.concatenate([left.has, has]),
        drops=left.drops + right.drops,
    )
    return _merge(joined)


_SETS = {"and": _and, "or": _or, "unless": _unless}


def _match(node: Binary, left: SeriesVector, right: SeriesVector) -> SeriesVector:
    """Return an operation on the pairs of series that have the same matching labels."""
    matching, steps = node.matching, left.values.shape[1]
    fills = (matching.fill_left, matching.fill_right)
    if (not len(left) and not len(right)) or (
        fills == (None, None) and not (len(left) and len(right))
    ):
        return empty_vector(steps)
    is_swapped = matching.cardinality == "one-to-many"
    many, one = (right, left) if is_swapped else (left, right)
    fill_many, fill_one = reversed(fills) if is_swapped else fills
    key = _keys(matching)
    keys_many, keys_one = _by_key(many, key), _by_key(one, key)
    _check_one_side(matching, many, one, keys_one)
    if matching.cardinality == "one-to-one":
        for found in keys_many.keys() & keys_one.keys():
            _check_many_side(many, one, keys_many[found], keys_one[found])
    pairs, labels = _pair(node, (many, keys_many, fill_many), (one, keys_one, fill_one))
    if len(pairs) > PAIRS_MAX:
        raise Invalid("the operation pairs more series than the limit", pairs_max=PAIRS_MAX)
    if not pairs:
        return empty_vector(steps)
    chosen = np.array(pairs, np.int64)
    values_many, has_many = _cells(
        many, chosen[:, 0], fill_many, absent=_absent(many, one, keys_many, key, chosen[:, 1])
    )
    values_one, has_one = _cells(
        one, chosen[:, 1], fill_one, absent=_absent(one, many, keys_one, key, chosen[:, 0])
    )
    has = has_many & has_one
    one_side, other_side = (values_one, values_many) if is_swapped else (values_many, values_one)
    values, keeps = _operate(node.operator, one_side, other_side)
    _check_unique(labels, has)
    if keeps is not None and node.returns_bool:
        values = keeps.astype(np.float64)
    elif keeps is not None:
        has = has & keeps
    return _merge(make_vector(labels, values, has, drops=node.returns_bool))


_Side = tuple[SeriesVector, dict[Labels, list[int]], float | None]


def _pair(node: Binary, many: _Side, one: _Side) -> tuple[list[tuple[int, int]], list[Labels]]:
    """Return the places of the series that are paired, -1 for a fill, and the results' labels."""
    matching = node.matching
    pairs: list[tuple[int, int]] = []
    labels: list[Labels] = []
    for found, members in many[1].items():
        for place in members:
            for other in one[1].get(found, []):
                pairs.append((place, other))
                labels.append(_result_labels(node, many[0].labels[place], one[0].labels[other]))
            if one[2] is not None:
                pairs.append((place, -1))
                shared = _group_labels(matching, found)
                labels.append(_result_labels(node, many[0].labels[place], shared))
    if many[2] is not None:
        for found, members in one[1].items():
            for other in members:
                pairs.append((-1, other))
                shared = _group_labels(matching, found)
                labels.append(_result_labels(node, shared, one[0].labels[other]))
    return pairs, labels


def _group_labels(matching: Matching, found: Labels) -> Labels:
    return found if matching.is_on else drop_name(found)


def _absent(
    side: SeriesVector,
    other: SeriesVector,
    keys: dict[Labels, list[int]],
    key: Callable[[Labels], Labels],
    places: Ints,
) -> Bools:
    """Return for each pair where this side has no series that matches the other's series."""
    found = np.ones((len(places), side.values.shape[1]), dtype=bool)
    for row, place in enumerate(places.tolist()):
        if place >= 0:
            members = keys.get(key(other.labels[place]))
            if members:
                found[row] = ~side.has[members].any(axis=0)
    return found


def _cells(
    side: SeriesVector, places: Ints, fill: float | None, *, absent: Bools
) -> tuple[Floats, Bools]:
    """Return the cells of these series; where the place is -1, the fill where they are absent."""
    if fill is None:
        return side.values[places], side.has[places]
    if not len(side):
        return np.full(absent.shape, fill), absent
    is_fill = (places < 0)[:, None]
    values = np.where(is_fill, fill, side.values[places])
    return values, np.where(is_fill, absent, side.has[places])


def _check_one_side(
    matching: Matching,
    many: SeriesVector,
    one: SeriesVector,
    keys_one: dict[Labels, list[int]],
) -> None:
    """Raise `Invalid` when two series of the one side match at a step at which there are others."""
    used = many.has.any(axis=0)
    for members in keys_one.values():
        if len(members) == 1:
            continue
        twice = (one.has[members].sum(axis=0) > 1) & used
        if not twice.any():
            continue
        step = int(np.argmax(twice))
        both = [place for place in members if one.has[place, step]][:2]
        group = _match_group(matching, one.labels[both[0]])
        shown = sorted(labels_text(one.labels[place]) for place in both)
        side = "left" if matching.cardinality == "one-to-many" else "right"
        raise Invalid(
            f"found duplicate series for the match group {labels_text(group)} on the {side}"
            f" hand-side of the operation: [{', '.join(shown)}];many-to-many matching not allowed:"
            " matching labels must be unique on one side",
            hint="match by more labels with on(...), or aggregate one side",
        )


def _match_group(matching: Matching, labels: Labels) -> Labels:
    names = frozenset(matching.names)
    if matching.is_on:
        return keep_labels(labels, names)
    return drop_labels(labels, names | {NAME})


def _check_many_side(
    many: SeriesVector, one: SeriesVector, members: list[int], others: list[int]
) -> None:
    if len(members) == 1:
        return
    at = one.has[others].any(axis=0)
    if ((many.has[members].sum(axis=0) > 1) & at).any():
        raise Invalid(
            "multiple matches for labels: many-to-one matching must be explicit"
            " (group_left/group_right)",
            hint="add group_left or group_right, or match by more labels",
        )


def _check_unique(labels: list[Labels], has: Bools) -> None:
    first: dict[Labels, Bools] = {}
    for row, one in enumerate(labels):
        seen = first.get(one)
        if seen is None:
            first[one] = has[row]
            continue
        if (seen & has[row]).any():
            raise Invalid(
                "multiple matches for labels: grouping labels must ensure unique matches",
                hint="match by more labels",
            )
        first[one] = seen | has[row]


def _result_labels(node: Binary, many: Labels, one: Labels) -> Labels:
    """Return the labels of the result of a pair."""
    matching, found = node.matching, many
    if node.operator in ARITHMETIC:
        found = drop_name(found)
    if matching.cardinality == "one-to-one":
        names = frozenset(matching.names)
        found = keep_labels(found, names) if matching.is_on else drop_labels(found, names)
    if matching.included:
        included = [(name, value_of(one, name)) for name in matching.included]
        found = make_labels([*drop_labels(found, frozenset(matching.included)), *included])
    return found


def _merge(vector: SeriesVector) -> SeriesVector:
    try:
        return merge_same_labels(vector)
    except SameLabels as error:
        raise same_labels_error(error) from error


def same_labels_error(error: SameLabels) -> Invalid:
    """Return the client's error for two series with the same labels."""
    return Invalid(
        "vector cannot contain metrics with the same labelset",
        hint="aggregate, or keep a label that tells the series apart",
        labels=str(error),
    )
