"""Sealed JSON files: every changed byte is noticed, older files without a checksum are known."""

import orjson
import pytest

from thermocline.errors import Corruption
from thermocline.format.sealed_json import seal, unseal

FIELDS = {"kind": "table name", "name": "orders", "table_id": "0" * 32}
OLD_FIELDS = frozenset(FIELDS)


def test_a_sealed_file_gives_its_fields_back():
    assert unseal(seal(FIELDS), "names/orders.json") == FIELDS


def test_every_flipped_bit_of_a_sealed_file_is_corruption_that_names_the_file():
    data = seal(FIELDS)
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(Corruption) as caught:
            unseal(bytes(damaged), "names/orders.json", unsealed_fields=OLD_FIELDS)
        assert caught.value.facts["path"] == "names/orders.json"


def test_every_truncation_of_a_sealed_file_is_corruption():
    data = seal(FIELDS)
    for size_bytes in range(len(data)):
        with pytest.raises(Corruption):
            unseal(data[:size_bytes], "x", unsealed_fields=OLD_FIELDS)


def test_a_file_of_an_older_release_is_read_when_its_fields_are_exactly_the_known_ones():
    assert unseal(orjson.dumps(FIELDS), "x", unsealed_fields=OLD_FIELDS) == FIELDS
    with pytest.raises(Corruption):
        unseal(
            orjson.dumps({**FIELDS, "chacksum": "crc32c:00000000"}), "x", unsealed_fields=OLD_FIELDS
        )
    with pytest.raises(Corruption):
        unseal(orjson.dumps(FIELDS), "x")


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"[]", b"null", b"\xff{", b"{}"])
def test_bytes_that_are_no_sealed_file_are_corruption(data):
    with pytest.raises(Corruption):
        unseal(data, "x", unsealed_fields=OLD_FIELDS)
