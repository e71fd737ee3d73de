"""Reads test scripts in the format of Prometheus' promqltest, and checks our answers by them.

In:   a script: `load`, `clear` and `eval` commands
Out:  a result for each `eval`: passed, failed with the reason, or what it needs that is unsupported

The scripts are Prometheus' own and are not in this repository: `make conformance` fetches them.
Positions in annotations are not compared, because the parser gives none.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from thermocline.errors import ThermoclineError
from thermocline.promql.evaluate import Answer, evaluate_instant, evaluate_range
from thermocline.promql.labels import NAME, Labels, labels_text, make_labels
from thermocline.promql.source import MemorySource
from thermocline.promql.values import STALE, SampleSet, Scalar, SeriesVector, Text

EPSILON = 1e-6
_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_INSTANT = re.compile(r"^eval(?:_(\w+))?\s+instant\s+(?:at\s+(\S+))?\s*(.+)$")
_RANGE = re.compile(r"^eval(?:_(\w+))?\s+range\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)\s+(.+)$")
_EXPECT = re.compile(r"^expect\s+(\w+)(?:\s+(msg|regex)\s*:\s*(.*))?$")
_QUOTED = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\''
_PAIR = re.compile(rf"\s*(?:([a-zA-Z_][\w:.]*)|({_QUOTED}))\s*(?:=\s*({_QUOTED}))?\s*(?:,|$)")
_ROW = re.compile(rf"^([a-zA-Z_:][\w:.]*)?\s*(?!\{{\{{)(\{{(?:{_QUOTED}|[^}}\"'])*\}})?\s*(.*)$")
_RUN = re.compile(r"^([+-]?(?:[\d.]+(?:e[+-]?\d+)?|Inf|inf|NaN|nan))(?:([+-].+?))?x(\d+)$")
_POSITION = re.compile(r"\s*\(\d+:\d+\)$")

NATIVE = "native histograms"
EXPERIMENTAL = re.compile(
    r"\b(info|limitk|limit_ratio|sort_by_label(_desc)?|histogram_quantiles|max_of|min_of"
    r"|mad_over_time|double_exponential_smoothing|ts_of_\w+_over_time|start_timestamp)\s*[(]"
    r"|\b(anchored|smoothed)\b|\b(fill|fill_left|fill_right)\s*\(|\b(start|end|step|range)\(\)"
)
EXPERIMENTAL_FILES = {
    "duration_expression.test": "duration expressions",
    "extended_vectors.test": "anchored and smoothed ranges",
    "fill-modifier.test": "fill modifiers",
    "info.test": "info()",
    "limit.test": "limitk and limit_ratio",
    "native_histograms.test": NATIVE,
    "start_timestamps.test": "start timestamps",
    "type_and_unit.test": "labels of type and unit",
}


@dataclass(slots=True)
class Case:
    """One `eval` with what it expects."""

    line: int
    query: str
    times_ms: tuple[int, int, int] | int
    expects: list[tuple[str, str, str]] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    window_ms: tuple[int, int, int] | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went; `needs` names what it needs beyond the stable language."""

    case: Case
    failure: str | None
    needs: str | None


def parse_time_ms(text: str) -> int:
    """Return the milliseconds of a duration or of a number of seconds."""
    sign = -1 if text.startswith("-") else 1
    bare = text.lstrip("+-")
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdwy])", bare)
    if parts and "".join(a + b for a, b in parts) == bare:
        return sign * round(sum(float(a) * _UNITS_MS[b] for a, b in parts))
    return sign * round(float(bare) * 1000)


def run_script(name: str, text: str) -> Iterator[CaseResult]:
    """Yield the result of each case of a script."""
    source = MemorySource()
    histograms: set[str] = set()
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        number = at + 1
        at += 1
        if not line or line.startswith("#"):
            continue
        if line == "clear":
            source, histograms = MemorySource(), set()
            continue
        block = []
        while at < len(lines) and lines[at].strip():
            one = lines[at].strip()
            at += 1
            if not one.startswith("#"):
                block.append(one)
        if line.startswith("load"):
            _load(source, histograms, line, block)
        elif line.startswith("eval"):
            case = _case(number, line, block)
            yield _check(name, case, source, histograms)


def _load(source: MemorySource, histograms: set[str], line: str, block: list[str]) -> None:
    command, interval = line.split()[:2]
    for row in block:
        try:
            labels, points = parse_row(row)
        except ValueError:
            continue
        if command == "load_with_nhcb":
            histograms.add(re.sub(r"_(bucket|sum|count)$", "", dict(labels).get(NAME, "")))
        if "{{" in points:
            histograms.add(dict(labels).get(NAME, ""))
            continue
        try:
            values = expand_points(points)
        except ValueError:
            continue
        step_ms = parse_time_ms(interval)
        for place, value in enumerate(values):
            if value is not None:
                source.add(labels, place * step_ms, value)


def _case(number: int, line: str, block: list[str]) -> Case:
    found = _RANGE.match(line)
    if found:
        start, end, step = (parse_time_ms(found[n]) for n in (2, 3, 4))
        case = Case(number, found[5], (start, end, step))
    else:
        found = _INSTANT.match(line)
        assert found, line
        case = Case(number, found[3], parse_time_ms(found[2] or "0"))
    if found[1]:
        case.expects.append((found[1], "", ""))
    for row in block:
        if row.startswith("expect string"):
            case.text = _unquote(row.removeprefix("expect string").strip())
        elif row.startswith("expect range vector"):
            words = row.split()
            case.window_ms = tuple(parse_time_ms(words[n]) for n in (4, 6, 8))  # type: ignore[assignment]
        elif row.startswith("expected_fail_message"):
            case.expects.append(("fail", "msg", row.removeprefix("expected_fail_message").strip()))
        elif row.startswith("expected_fail_regexp"):
            case.expects.append(("fail", "regex", row.removeprefix("expected_fail_regexp").strip()))
        elif row.startswith("expect "):
            wanted = _EXPECT.match(row)
            assert wanted, row
            case.expects.append((wanted[1], wanted[2] or "", (wanted[3] or "").strip()))
        else:
            case.rows.append(row)
    return case


def parse_row(row: str) -> tuple[Labels, str]:
    """Return the labels of a series, and the text of its points."""
    found = _ROW.match(row)
    if not found or (found[1] is None and found[2] is None):
        raise ValueError(row)
    pairs = [(NAME, found[1])] if found[1] else []
    inside = (found[2] or "{}")[1:-1]
    place = 0
    while place < len(inside) and inside[place:].strip():
        pair = _PAIR.match(inside, place)
        if not pair:
            raise ValueError(row)
        name = pair[1] or _unquote(pair[2])
        pairs.append((name, _unquote(pair[3])) if pair[3] else (NAME, name))
        place = pair.end()
    return make_labels(pairs), found[3]


def _unquote(text: str) -> str:
    if text[:1] == "`":
        return text[1:-1]
    if "\\" not in text:
        return text[1:-1]
    raw = text[1:-1].encode().decode("unicode_escape").encode("latin-1", "replace")
    return raw.decode("utf-8", "replace")


def expand_points(text: str) -> list[float | None]:
    """Return the values of a sequence of points; None where there is none."""
    found: list[float | None] = []
    for word in text.split():
        if word == "_":
            found.append(None)
        elif re.fullmatch(r"_x\d+", word):
            found += [None] * int(word[2:])
        elif word == "stale":
            found.append(float(STALE))
        else:
            run = _RUN.match(word)
            if run is None:
                found.append(float(word))
                continue
            step = 0.0 if run[2] is None else float(run[2])
            value = float(run[1])
            for _ in range(int(run[3]) + 1):
                found.append(value)
                value += step
    return found


def _needs(name: str, case: Case, histograms: set[str]) -> str | None:
    if name in EXPERIMENTAL_FILES:
        return EXPERIMENTAL_FILES[name]
    names = set(re.findall(r"[a-zA-Z_:][\w:]*", case.query))
    is_all = (
        any("{{" in row for row in case.rows) or "__name__" in case.query or case.query[:1] == "{"
    )
    if any("{{" in row for row in case.rows) or names & histograms or (is_all and histograms):
        return NATIVE
    if EXPERIMENTAL.search(re.sub(r"@ (start|end)\(\)", "", case.query)):
        return "experimental functions"
    return None


def _check(name: str, case: Case, source: MemorySource, histograms: set[str]) -> CaseResult:
    needs = _needs(name, case, histograms)
    kinds = {kind for kind, _, _ in case.expects}
    try:
        answer = _evaluate(case, source)
    except ThermoclineError as error:
        return CaseResult(case, _failure_of_error(case, error, kinds), needs)
    except Exception as error:  # noqa: BLE001  a bug is a failed case, not the end of the run
        return CaseResult(case, f"bug: {error!r}", needs)
    if "fail" in kinds:
        return CaseResult(case, "expected an error", needs)
    failure = _failure_of_notes(case, answer, kinds) or _failure_of_value(
        case, answer, is_ordered="ordered" in kinds
    )
    return CaseResult(case, failure, needs)


def _evaluate(case: Case, source: MemorySource) -> Answer:
    if isinstance(case.times_ms, int):
        return evaluate_instant(source, case.query, case.times_ms)
    return evaluate_range(source, case.query, *case.times_ms)


def _failure_of_error(case: Case, error: ThermoclineError, kinds: set[str]) -> str | None:
    if "fail" not in kinds:
        return f"unexpected error: {error.message} {error.facts}"
    for kind, how, text in case.expects:
        if kind == "fail" and how == "msg" and text != error.message:
            return f"another error: {error.message}"
        if kind == "fail" and how == "regex" and not re.search(text, error.message):
            return f"another error: {error.message}"
    return None


def _failure_of_notes(case: Case, answer: Answer, kinds: set[str]) -> str | None:
    for kind, found in (("warn", answer.notes.warnings), ("info", answer.notes.infos)):
        if f"no_{kind}" in kinds and found:
            return f"unexpected {kind}: {list(found)}"
        if kind in kinds and not found:
            return f"no {kind}"
        for wanted, how, text in case.expects:
            if wanted != kind or not how:
                continue
            bare = _POSITION.sub("", text)
            if how == "msg" and bare not in found:
                return f"another {kind}: {list(found)}"
            if how == "regex":
                bare = re.sub(r"\s*\\\(.*?\\\)$", "", text)
                if not any(re.search(bare.replace(" .*", ".*"), one) for one in found):
                    return f"another {kind}: {list(found)}"
    return None


def _cells(case: Case, answer: Answer) -> dict[Labels, list[tuple[int, float]]]:
    value = answer.value
    if isinstance(value, SampleSet):
        found = {}
        for place, labels in enumerate(value.labels):
            low, high = value.offsets[place], value.offsets[place + 1]
            times, values = value.times_ms[low:high], value.values[low:high]
            found[labels] = list(zip(times.tolist(), values.tolist(), strict=True))
        return found
    if isinstance(value, Scalar):
        cells = list(zip(answer.times_ms.tolist(), value.values.tolist(), strict=True))
        return {(): cells}
    assert isinstance(value, SeriesVector)
    return {
        labels: [
            (int(answer.times_ms[at]), float(value.values[place, at]))
            for at in np.flatnonzero(value.has[place])
        ]
        for place, labels in enumerate(value.labels)
    }


def _expected(case: Case) -> dict[Labels, list[tuple[int, float]]]:
    if isinstance(case.times_ms, int) and case.window_ms is None:
        first, step = case.times_ms, 1
    else:
        first, _, step = case.window_ms or case.times_ms  # type: ignore[misc]
    found: dict[Labels, list[tuple[int, float]]] = {}
    for row in case.rows:
        is_number = _RUN.match(row + "x0") is not None
        labels, points = ((), row) if is_number else parse_row(row)
        found[labels] = [
            (first + place * step, value)
            for place, value in enumerate(expand_points(points))
            if value is not None
        ]
    return {labels: cells for labels, cells in found.items() if cells}


def _failure_of_value(case: Case, answer: Answer, *, is_ordered: bool) -> str | None:
    if isinstance(answer.value, Text):
        return None if answer.value.text == case.text else f"text {answer.value.text!r}"
    found = _cells(case, answer)
    if any("{{" in row for row in case.rows):
        return "expects a native histogram"
    expected = _expected(case)
    if is_ordered and list(found) != list(expected):
        return f"order: {[labels_text(one) for one in found]}"
    if found.keys() != expected.keys():
        extra = [labels_text(one) for one in found.keys() - expected.keys()]
        missing = [labels_text(one) for one in expected.keys() - found.keys()]
        return f"extra {extra}, missing {missing}"
    for labels, cells in expected.items():
        got = found[labels]
        if [at for at, _ in got] != [at for at, _ in cells]:
            return f"{labels_text(labels)}: times {got} not {cells}"
        for (at, value), (_, wanted) in zip(got, cells, strict=True):
            if not _is_almost(value, wanted):
                return f"{labels_text(labels)} at {at}: {value!r} not {wanted!r}"
    return None


def _is_almost(one: float, other: float) -> bool:
    if np.isnan(one) and np.isnan(other):
        return True
    if one == other:
        return True
    size = abs(one) + abs(other)
    difference = abs(one - other)
    if one == 0 or other == 0 or size < 2.3e-308:
        return difference < EPSILON * 2.3e-308
    return bool(difference / min(size, 1.797e308) < EPSILON)
