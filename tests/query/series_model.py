"""What the functions of series should return, computed sample by sample in plain Python."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

ORIGIN_S = 946_857_600


@dataclass
class Point:
    """One sample as a sender sends it; times are in seconds."""

    series: int
    time: int
    value: float | None
    start: int | None = None
    delta: bool = False
    sum: float = 0.0
    buckets: dict = field(default_factory=dict)  # (lower, upper) -> count


def window_of(time, width):
    return (time - ORIGIN_S) // width * width + ORIGIN_S


def steps(points, lookback):
    """Yield each point with the point before it, and how its increase is known."""
    series = defaultdict(dict)
    for point in points:
        if point.value is not None:
            series[point.series][point.time] = point
    for by_time in series.values():
        before = None
        for time in sorted(by_time):
            point = by_time[time]
            is_next = before is not None and time - before.time <= lookback
            begun = point.start is not None and point.start < time
            fell = is_next and point.value < before.value
            later = is_next and begun and before.start is not None and point.start > before.start
            if point.delta or fell or later:
                kind = "whole"
            elif is_next:
                kind = "step"
            elif begun and time - point.start <= lookback:
                kind = "whole"
            else:
                kind = "unknown"
            yield point, before, kind
            before = point


def increases(points, width, lookback):
    """Return by (series, window) the increase, or None where it is unknown, and the samples."""
    found = {}
    for point, before, kind in steps(points, lookback):
        key = point.series, window_of(point.time, width)
        total, samples = found.get(key, (None, 0))
        if kind != "unknown":
            gained = point.value if kind == "whole" else point.value - before.value
            total = (total or 0) + gained
        found[key] = total, samples + 1
    return found


def bucket_increases(points, width, lookback):
    """Return by (series, window) what each bucket gained, at one scale."""
    found = defaultdict(lambda: defaultdict(float))
    for point, before, kind in steps(points, lookback):
        gained = found[point.series, window_of(point.time, width)]
        if kind == "unknown":
            continue
        for bucket in {*point.buckets, *(before.buckets if kind == "step" else ())}:
            was = before.buckets.get(bucket, 0) if kind == "step" else 0
            gained[bucket] += point.buckets.get(bucket, 0) - was
    return {
        key: {bucket: count for bucket, count in gained.items() if count}
        for key, gained in found.items()
    }


def quantile(q, buckets):
    """Return the quantile of buckets (lower, upper, count) that do not overlap, as Prometheus."""
    buckets = sorted(one for one in buckets if one[2] > 0)
    total = sum(count for _, _, count in buckets)
    if not total:
        return None
    rank, passed = Fraction(q) * Fraction(total), Fraction(0)
    for lower, upper, count in buckets:
        if passed + Fraction(count) >= rank:
            if math.isinf(upper):
                return lower
            if math.isinf(lower):
                lower = 0.0 if upper > 0 else upper
            return lower + (upper - lower) * float((rank - passed) / Fraction(count))
        passed += Fraction(count)
    return buckets[-1][1]
