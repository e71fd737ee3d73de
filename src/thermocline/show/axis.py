"""Draws the time axis under a bar of blocks: round times with labels that fit.

In:   the first instant of a bar, the instant at which it ends, its width in blocks
Out:  the lines of the axis and its labels

- The first and the last label are always complete; between them only round times are labelled, and
  only if the label fits.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from thermocline.show.text import clock_text

LABEL_GAP = 3
TICKS_MAX = 400

_DAY_S = 86_400
_STEPS_S = (1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200)
_STEPS_DAYS = (1, 2, 7, 14)
_STEPS_MONTHS = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1_200, 6_000)


def draw_axis(begin: datetime, end: datetime, blocks: int, room: int) -> tuple[str, ...]:
    """Return an axis as wide as the blocks, and its labels within `room` columns."""
    span_s = (end - begin).total_seconds()
    ticks = _ticks(begin, end, blocks)
    places = [int((tick - begin).total_seconds() / span_s * blocks) for tick, _ in ticks]
    year = begin.year

    def label(number: int) -> str:
        tick, text = ticks[number]
        return text if tick.year == year else clock_text(tick)

    def draw(number: int) -> None:
        nonlocal year
        year = ticks[number][0].year

    return _draw(clock_text(begin), clock_text(end), places, label, draw, blocks, room)


def draw_number_axis(begin: int, end: int, blocks: int, room: int) -> tuple[str, ...]:
    """Return the axis of an integer index, as `draw_axis` does for times."""
    width = max(len(f"{begin:,}"), len(f"{end:,}")) + LABEL_GAP
    step = next(
        size * 10**power
        for power in range(22)
        for size in (1, 2, 5)
        if blocks * size * 10**power >= width * (end - begin)
    )
    ticks = range((begin // step + 1) * step, end, step)
    places = [(tick - begin) * blocks // (end - begin) for tick in ticks]
    return _draw(
        f"{begin:,}", f"{end:,}", places, lambda number: f"{ticks[number]:,}", None, blocks, room
    )


def _draw(
    left: str,
    right: str,
    places: Sequence[int],
    label: Callable[[int], str],
    on_drawn: Callable[[int], None] | None,
    blocks: int,
    room: int,
) -> tuple[str, ...]:
    """Return the ruler and the labels of the ticks that fit between both ends."""
    ruler = ["└", *"─" * (blocks - 2), "┘"] if blocks > 1 else ["╵"]
    last = max(blocks, len(left) + LABEL_GAP + len(right))
    if last > room:
        return "".join(ruler), f"{left} to", right
    labels = [*left.ljust(last - len(right)), *right]
    limit, free = last - len(right) - LABEL_GAP, len(left) + LABEL_GAP
    for number, place in enumerate(places):
        text = label(number)
        if place < free or place + len(text) > limit:
            continue
        ruler[place] = "┬"
        labels[place : place + len(text)] = text
        free = place + len(text) + LABEL_GAP
        if on_drawn:
            on_drawn(number)
    return "".join(ruler), "".join(labels)


def _ticks(begin: datetime, end: datetime, blocks: int) -> list[tuple[datetime, str]]:
    """Return round times between two times, as many as fit, and their labels."""
    span_s = (end - begin).total_seconds()
    for step_s in (*_STEPS_S, *(days * _DAY_S for days in _STEPS_DAYS)):
        form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < _DAY_S else "%m-%d"
        if blocks * step_s / span_s >= len(begin.strftime(form)) + LABEL_GAP:
            return [
                (tick, tick.strftime("%m-%d" if _is_midnight(tick) else form))
                for tick in _even_ticks(begin, end, step_s)
            ]
    for months in _STEPS_MONTHS:
        if blocks * months * 30 * _DAY_S / span_s >= len("2024-06") + LABEL_GAP:
            return [(tick, f"{tick:%m-%d}") for tick in _month_ticks(begin, end, months)]
    return []


def _is_midnight(time: datetime) -> bool:
    return (time.hour, time.minute, time.second) == (0, 0, 0)


def _even_ticks(begin: datetime, end: datetime, step_s: int) -> Iterator[datetime]:
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    past_s = int((begin - midnight).total_seconds())
    for count in range(past_s // step_s + 1, past_s // step_s + 1 + TICKS_MAX):
        if timedelta(seconds=count * step_s) >= end - midnight:
            return
        yield midnight + timedelta(seconds=count * step_s)


def _month_ticks(begin: datetime, end: datetime, months: int) -> Iterator[datetime]:
    number = ((begin.year * 12 + begin.month - 1) // months + 1) * months
    first = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while number // 12 <= end.year:
        tick = first.replace(year=number // 12, month=number % 12 + 1)
        if tick >= end:
            return
        yield tick
        number += months
