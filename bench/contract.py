"""Times contracts: ten-field entities validated from bytes, and carried to rows and back.

In:   documents made here, each unlike the one before
Out:  the section "contract" of the results: entities a CPU second, by what a contract asks for

- `one by one` and `lines` end with documents in canonical form, ready to be written. `decoded
  alone` parses the same bytes and checks nothing; `compiled schema alone` checks values that are
  parsed already.
- One thread. CPU time, so that neighbours count less.
- The goal is 300,000 a second from bytes, one by one. The best round says what a core can do
  that nobody else uses; all else is the median.
"""

import json
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import measure
from thermocline.contract.contract import Contract
from thermocline.contract.document.text import decode
from thermocline.contract.schema.register import parse_contract

GOAL = 300_000
COUNT = 1_000
PLAIN = {
    "id": {"type": "string", "format": "uuid"},
    "name": {"type": "string", "maxLength": 50},
    "price": {"type": "number", "minimum": 0},
    "count": {"type": "integer", "minimum": 0},
    "at": {"type": "string", "format": "date-time"},
    "day": {"type": "string", "format": "date"},
    "is_open": {"type": "boolean"},
    "state": {"enum": ["new", "paid", "sent"]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "mail": {"type": "string", "format": "email"},
}
DECIMAL = {**PLAIN, "price": {"type": "number", "x-type": "decimal(18,2)"}}
DECIMAL_TEXT = {**PLAIN, "price": {"type": "string", "x-type": "decimal(18,2)"}}
NESTED = {
    **PLAIN,
    "tags": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"key": {"type": "string"}, "weight": {"type": "integer"}},
            "required": ["key"],
        },
    },
}
ANY = {**PLAIN, "tags": {}}


def documents(name: str) -> list[bytes]:
    """Return entities as JSON text that fit the contract of this name."""
    made = []
    for number in range(COUNT):
        price = number % 9_973 + 0.25
        tags: list[object] = [f"tag-{number % 7}", "all"]
        if name == "list of objects":
            tags = [{"key": f"tag-{number % 7}", "weight": number}]
        document = {
            "id": str(uuid.UUID(int=number * 7_919)),
            "name": f"entity {number}",
            "price": f"{price:.2f}" if name == "decimal in text" else price,
            "count": number,
            "at": f"2024-06-01T12:{number % 60:02d}:00Z",
            "day": "2024-06-01",
            "is_open": number % 2 == 0,
            "state": ("new", "paid", "sent")[number % 3],
            "tags": tags,
            "mail": f"someone{number}@example.org",
        }
        made.append(json.dumps(document, separators=(",", ":")).encode())
    return made


def rate(
    work: Callable[[], object],
    seconds: float,
    of: Callable[[list[float]], float] = statistics.median,
) -> float:
    """Return the entities a CPU second of work on all documents, done again and again."""
    rates = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or not rates:
        start = time.process_time()
        work()
        rates.append(COUNT / (time.process_time() - start))
    return of(rates)


def each(work: Callable[[Any], object], values: Sequence[Any]) -> None:
    """Do the work on one value after the other, and keep nothing, as a server does."""
    for value in values:
        work(value)


def compared(name: str, properties: dict[str, object], seconds: float) -> tuple[list[str], float]:
    """Return one line of the table, and the best rate one by one."""
    contract: Contract = parse_contract({"type": "object", "properties": properties})
    data = documents(name)
    lines = b"\n".join(data)
    kept = contract.validate_lines(lines)
    rows = contract.arrow_rows(kept)
    if [contract.document_of(row) for row in rows.to_pylist()] != kept:
        raise SystemExit("a document did not come back")
    values = [decode(one) for one in data]
    rates = [
        rate(lambda: each(contract.validate_bytes, data), seconds, max),
        rate(lambda: each(contract.validate_bytes, data), seconds),
        rate(lambda: contract.validate_lines(lines), seconds),
        rate(lambda: each(decode, data), seconds),
        rate(lambda: each(contract.is_fitting, values), seconds),
        rate(lambda: contract.arrow_rows(kept), seconds),
        rate(lambda: [contract.document_of(row) for row in rows.to_pylist()], seconds),
    ]
    return [name, *(f"{one:,.0f}" for one in rates)], rates[0]


def main() -> None:
    """Run the bench and write its section."""
    options = measure.options(__doc__.splitlines()[0]).parse_args()
    seconds = 0.1 if options.quick else 2.0
    contracts = {
        "plain": PLAIN,
        "decimal number": DECIMAL,
        "decimal in text": DECIMAL_TEXT,
        "list of objects": NESTED,
        "JSON column": ANY,
    }
    made = []
    with measure.Noise() as noise:
        for name, properties in contracts.items():
            measure.await_quiet(options.patience)
            made.append(compared(name, properties, seconds))
    headers = [
        *("contract", "one by one, best", "median", "lines", "decoded alone"),
        "compiled schema alone",
        *("to Arrow rows", "back to documents"),
    ]
    best = made[0][1]
    verdict = measure.verdict(best, GOAL, at_most=False)
    body = "\n\n".join(
        [
            "## Contracts",
            measure.provenance("contract.py", {"msgspec": msgspec.__version__}),
            noise.line(),
            "Entities of ten fields a CPU second, from bytes to documents ready to be written:",
            measure.markdown_table(headers, [line for line, _ in made]),
            f"Plain, one by one, best at least {GOAL:,}: {best:,.0f}, {verdict}.",
        ]
    )
    print(body)
    measure.write_section(options.results, "contract", body)


if __name__ == "__main__":
    main()
