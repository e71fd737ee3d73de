"""The formats of answers: their media types, which one a client prefers, and small tables encoded.

In:   an Accept header; small Arrow tables
Out:  the name of a format; a body
"""

from collections.abc import Mapping

import pyarrow as pa

from thermocline.show.answer_format import ENCODERS, AnswerInfo

MEDIA_TYPES: Mapping[str, str] = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
CHARSETS = {"csv": "; charset=utf-8; header=present"}
OTHER_NAMES = {
    "application/jsonl": "ndjson",
    "application/ndjson": "ndjson",
    "application/x-parquet": "parquet",
    "application/*": "json",
    "text/*": "csv",
    "*/*": "json",
}


def content_type(form: str) -> str:
    """Return the Content-Type of a format."""
    return MEDIA_TYPES[form] + CHARSETS.get(form, "")


def encode_table(table: pa.Table, form: str, *, is_truncated: bool = False) -> bytes:
    """Return a small table as one body."""
    encoder = ENCODERS[form](table.schema, AnswerInfo())
    parts = [encoder.head()]
    parts += [encoder.rows(batch) for batch in table.to_batches()]
    parts.append(encoder.end(is_truncated=is_truncated))
    return b"".join(parts)


def negotiate_format(accept: str | None) -> str | None:
    """Return the format that an Accept header prefers; None when it accepts none."""
    if not accept or not accept.strip():
        return "json"
    known = {media: form for form, media in MEDIA_TYPES.items()} | OTHER_NAMES
    best: tuple[float, int] | None = None
    found = None
    for place, wish in enumerate(accept.split(",")[:50]):
        media, *settings = (part.strip().lower() for part in wish.split(";"))
        weight = _weight(settings)
        if media in known and weight > 0 and (best is None or (weight, -place) > best):
            best, found = (weight, -place), known[media]
    return found


def _weight(settings: list[str]) -> float:
    for setting in settings:
        name, _, value = setting.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
