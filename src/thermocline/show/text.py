"""Small texts for people: sizes, shares and times, and text that is escaped and cut to a width.

- A share is written as 100 % only if all is held, and as 0 % only if nothing is.
- Control characters in data never reach a terminal.
"""

import unicodedata
from datetime import datetime

from thermocline.format.bucket import Bucket
from thermocline.format.instant import TIME_MAX, to_datetime


def size_text(size_bytes: int) -> str:
    """Return a size for people, such as `1.4 MB`; a kB is 1,000 bytes."""
    if abs(size_bytes) < 1_000:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        size /= 1_000
        if abs(size) < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1_000:,.1f} EB"


def share_text(held: int, total: int) -> str:
    """Return a share in per cent, truncated; only all is 100 %, and only nothing is 0 %."""
    if not total or not held:
        return "0 %"
    if held == total:
        return "100 %"
    tenths = held * 1_000 // total
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "<0.1 %"


def display_time(instant: int) -> datetime:
    """Return the datetime of an instant; an instant above `TIME_MAX` becomes `TIME_MAX`."""
    return to_datetime(min(instant, TIME_MAX))


def position_text(bucket: Bucket, position: int) -> str:
    """Return a position for people: a time in short form, or a number with commas."""
    return clock_text(display_time(position)) if bucket.is_time else f"{position:,}"


def clock_text(time: datetime) -> str:
    """Return a time in short form: without a clock at midnight, without seconds if they are 0."""
    day = f"{time.year:04d}-{time.month:02d}-{time.day:02d}"
    if (time.hour, time.minute, time.second) == (0, 0, 0):
        return day
    return f"{day} {time:%H:%M}" + (f":{time.second:02d}" if time.second else "")


def visible(text: str) -> str:
    """Return the text with every control character made visible."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if _is_plain(character) else _name_control(character) for character in text
    )


def text_width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def shorten(text: str, width: int) -> str:
    """Return the text, cut with an ellipsis if it is wider than `width` columns."""
    if text_width(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _character_width(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    """Return the text, filled with spaces to `width` columns."""
    return text + " " * max(0, width - text_width(text))


def _is_plain(character: str) -> bool:
    # Cf contains the marks that change the direction of writing; Zl and Zp break lines.
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _name_control(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}"


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
