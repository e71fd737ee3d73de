"""InfluxDB's line protocol: values, tags, escapes, times, and what is refused by name."""

import json

import pytest

from thermocline.errors import BodyTooLarge
from thermocline.ingest.line_protocol import UNITS_NS, decode_lines
from thermocline.ingest.otlp.limits import DecodeLimits

ARRIVED_NS = 1_717_200_000_000_000_000


def decode(text, unit="ns", **limits):
    return decode_lines(text.encode(), UNITS_NS[unit], ARRIVED_NS, DecodeLimits(**limits))


def rows(decoded):
    return decoded.batches["metric_points"].to_pylist() if decoded.batches else []


def test_each_field_that_is_a_number_is_a_row():
    decoded = decode(
        "cpu,host=h1,service=shop idle=98.5,cores=8i,busy=t 1717200001\n"
        "# a comment\n\nmem used=1e3",
        "s",
    )
    found = rows(decoded)
    assert [(row["metric"], row["value"], row["value_int"]) for row in found] == [
        ("cpu_idle", 98.5, None), ("cpu_cores", 8.0, 8), ("cpu_busy", 1.0, None),
        ("mem_used", 1000.0, None),
    ]  # fmt: skip
    assert {row["ts_ns"] for row in found[:3]} == {1_717_200_001 * 10**9}
    assert found[3]["ts_ns"] == ARRIVED_NS
    assert (found[0]["host_name"], found[0]["service_name"]) == ("h1", "shop")
    assert json.loads(found[0]["attributes"]) == {"host": "h1", "service": "shop"}
    assert decoded.accepted == 4


def test_escapes_are_read():
    (row,) = rows(decode(r"disk\ io,path=/a\,b,k\=y=v\ w read\ ops=1 5"))
    assert row["metric"] == "disk io_read ops"
    assert json.loads(row["attributes"]) == {"path": "/a,b", "k=y": "v w"}


@pytest.mark.parametrize(
    ("line", "accepted", "reason"),
    [
        ('log text="a, b=c",n=1 5', 1, "a field that is a text (1)"),
        ("no fields", 0, "a line that is not line protocol (1)"),
        ("m a=1 5x", 0, "a line that is not line protocol (1)"),
        ("m,t a=1", 0, "a line that is not line protocol (1)"),
        ("m a=1_0", 0, "a line that is not line protocol (1)"),
        ("m a=99999999999999999999i", 0, "an integer beyond int64 (1)"),
        ("m a=1 99999999999999999999", 0, "a time beyond int64 nanoseconds (1)"),
        ("m a=1e999", 0, "a number beyond a double (1)"),
        ("m a=1,,b=2", 0, "a line that is not line protocol (1)"),
        ('m text="a\nb value=2 1\n",n=1 5', 1, "a field that is a text (1)"),
        ("\udcff a=1", 0, "a line that is not line protocol (1)"),
    ],
)
def test_what_is_refused_is_named_and_the_rest_is_accepted(line, accepted, reason):
    data = f"{line}\ngood v=1 1".encode(errors="surrogateescape")
    decoded = decode_lines(data, 1, ARRIVED_NS, DecodeLimits())
    assert decoded.accepted == accepted + 1
    assert reason in decoded.message


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0b", "\x1e"])
def test_a_line_ends_at_a_line_feed_alone(mark):
    (row,) = rows(decode(f"m,tag=a{mark}b value=1 5\r\n"))
    assert (row["metric"], json.loads(row["attributes"])) == ("m_value", {"tag": f"a{mark}b"})


def test_a_quote_in_a_tag_opens_no_text():
    found = rows(decode('m,tag="a value=1 5\nm,tag="b value=2 6'))
    assert [row["value"] for row in found] == [1.0, 2.0]


def test_more_values_than_the_limit_are_refused():
    with pytest.raises(BodyTooLarge):
        decode("m a=1,b=2,c=3", items_max=2)
