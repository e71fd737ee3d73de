"""The pages of the format: their examples decode with the real code, their tables are complete.

A block is named by the words after its backticks, such as "json commit 1".
"""

import base64
import re
from itertools import pairwise
from pathlib import Path

import google_crc32c
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.lake import spec
from thermocline import errors
from thermocline.cold.catalog import Catalog, CatalogEntry, LakeIdentity
from thermocline.cold.log.checkpoint import encode_checkpoint, read_checkpoint
from thermocline.cold.segment.parquet import decode_deletes, encode_deletes
from thermocline.cold.storage.local import LocalStorage
from thermocline.error_table import find_answer
from thermocline.format import layout
from thermocline.format.coverage import decode_coverage, encode_coverage, sidecar_checksum
from thermocline.format.instant import format_instant
from thermocline.format.log.action import (
    Action,
    decode_action,
    decode_segment,
    encode_action,
    encode_segment,
)
from thermocline.format.log.commit import FORMAT_VERSION, decode_commit, encode_commit
from thermocline.format.log.conflict import RULES
from thermocline.format.log.state import coverage_digest
from thermocline.format.tokens import decode_head, hash_token
from thermocline.format.types import _PLAIN, decode_type, encode_type
from thermocline.hot.wal import folder, frame
from thermocline.hot.wal.repair.damage import Damage, decode_hole, encode_hole

DOCS = Path(__file__).parents[2] / "docs"
GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
SALTED = Path(__file__).parents[1] / "golden" / "v2"
PAGES = {
    name: (DOCS / "format" / f"{name}.md").read_text()
    for name in ("log", "segment", "coverage", "tokens", "checkpoint", "journal", "lake")
}
_BLOCK = re.compile(r"^```(\S[^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEX_LINE = re.compile(r"^(\d+)\s+((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:\s{2,}(.*))?$")


def blocks(page, name):
    """Return the text of every block of a page that is called so."""
    return [text for words, text in _BLOCK.findall(PAGES[page]) if words == name]


def dumped(page, name):
    """Return the bytes of a hex block, checking the offset that each line claims."""
    (text,) = blocks(page, name)
    data = b""
    for line in text.splitlines():
        found = _HEX_LINE.match(line)
        assert found, line
        assert int(found[1]) == len(data), line
        data += bytes.fromhex(found[2])
    return data


def rows(page, *, header):
    """Return the cells of the table of a page that has this header."""
    lines = page.splitlines()
    start = next(place for place, line in enumerate(lines) if _cells(line) == list(header))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append(_cells(line))
    return table


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_every_example_is_of_a_kind_that_is_tested():
    known = {"json commit 1", "json action", "json types", "json current", "json pin"}
    known |= {"json segment", "hex deletes", "hex coverage", "hex tokens", "json state"}
    known |= {"hex journal", "hex watermark", "json identity", "json hole"}
    known |= {"json lake", "json name", "json renamed", "json dropped"}
    found = {words for page in PAGES.values() for words, _ in _BLOCK.findall(page)}
    assert found == known


def test_the_example_commit_is_the_golden_one_byte_for_byte():
    (text,) = blocks("log", "json commit 1")
    data = text.encode()
    assert data == (GOLDEN / "create.commit.json").read_bytes()
    assert encode_commit(decode_commit(data, 1)) == data


def test_the_checksum_is_found_by_the_rule_on_the_page():
    (text,) = blocks("log", "json commit 1")
    data = text.encode()
    comma = data.rindex(b',"checksum"')
    assert len(data) - comma == 31
    stored = orjson.loads(data)["checksum"]
    assert stored == f"crc32c:{google_crc32c.value(data[:comma] + b'}'):08x}"


def test_the_example_actions_are_all_there_are_and_read_back():
    examples = [orjson.loads(text) for text in blocks("log", "json action")]
    assert [encode_action(decode_action(example)) for example in examples] == examples
    assert [next(iter(example)) for example in examples] == [kind.name for kind in Action.__args__]


def test_the_example_token_sidecar_is_the_golden_one_and_holds_what_the_page_says():
    data = dumped("tokens", "hex tokens")
    assert data == (GOLDEN.parent / "tokens" / "texts.bloom").read_bytes()
    one = decode_head(data, len(data))[12]
    table = rows(PAGES["tokens"], header=("token", "hash", "bits"))
    assert len(table) == 6
    for token, written, bits in table:
        found = hash_token(token.strip("`"))
        probes = [((found & 0xFFFFFFFF) + i * (found >> 32)) % one.bits for i in range(one.probes)]
        assert (f"`{found:016x}`", ", ".join(map(str, probes))) == (written, bits)
        assert one.may_hold(found, data.__getitem__)


def test_the_written_types_are_types():
    (text,) = blocks("log", "json types")
    examples = orjson.loads(text)
    words = [
        word
        for row in rows(PAGES["log"], header=("type", "written"))
        for word in re.findall(r"`([^`]+)`", row[1])
    ]
    assert set(words) >= set(_PLAIN)
    assert [encode_type(decode_type(json)) for json in (*words, *examples)] == [*words, *examples]
    kinds = {key for example in examples for key in example}
    assert kinds >= {"list", "large_list", "fixed_list", "struct", "map", "dictionary"}


def test_the_conflict_rules_are_those_of_the_code_in_their_order():
    table = rows(PAGES["log"], header=("rule", "mine", "theirs", "because"))
    assert [row[0].strip("`") for row in table] == list(RULES)


def test_the_example_hint_and_pin_are_what_is_written():
    (hint,) = blocks("log", "json current")
    (pin,) = blocks("log", "json pin")
    assert hint.strip().encode() == (GOLDEN.parent / "chained" / "CURRENT").read_bytes().strip()
    assert pin.strip().encode() == (GOLDEN.parent / "chained" / "pin.json").read_bytes().strip()


def test_the_folder_on_the_page_is_the_layout():
    picture = PAGES["log"].split("\n\n")[2]
    named = [line.split()[0] for line in picture.splitlines()[1:]]
    version, hour = 7, 1_717_200_000 * 10**9
    made = [
        layout.commit_path(version),
        layout.checkpoint_path(100),
        layout.base_path(100),
        layout.CURRENT_PATH,
        layout.segment_coverage_path("<id>"),
        layout.table_coverage_path(version).replace(f"{version:020d}", "<version>"),
        layout.tokens_path("<id>"),
        layout.pin_path("<id>"),
        layout.contract_path(version).replace(f"{version:010d}", "<version>"),
        f"{layout.REPAIR_FOLDER}/<id>/<name>",
        layout.segment_path(hour, "<id>").replace("2024/06/01/00", "<yyyy>/<mm>/<dd>/<hh>"),
    ]
    assert named == made


@pytest.mark.parametrize("page", ["segment", "checkpoint"])
def test_the_example_segments_read_back(page):
    (text,) = blocks(page, "json segment")
    example = orjson.loads(text)
    written_back = orjson.dumps(encode_segment(decode_segment(example)))
    assert orjson.loads(written_back) == example


def test_the_fields_of_a_segment_are_all_explained():
    (text,) = blocks("segment", "json segment")
    table = rows(PAGES["segment"], header=("field", "meaning", "left out when"))
    explained = [name for row in table for name in re.findall(r"`(\w+)`", row[0])]
    assert explained == list(orjson.loads(text))


def test_the_example_deletion_vector_names_its_rows():
    data = dumped("segment", "hex deletes")
    (text,) = blocks("segment", "json segment")
    assert base64.b64encode(data).decode() == orjson.loads(text)["deletes"]
    positions = decode_deletes(base64.b64encode(data).decode())
    assert list(positions) == [1, 7, 9]
    assert base64.b64decode(encode_deletes(positions)) == data
    assert len(positions) == orjson.loads(text)["deleted_count"]


def test_the_example_sidecar_says_what_the_page_says():
    data = dumped("coverage", "hex coverage")
    found = decode_coverage(data)
    hour = 477_000
    assert format_instant(hour * 3_600 * 10**9) == "2024-06-01T00:00:00Z"
    assert f"0x{hour + 2**40:012x}".replace("0x", "") == "010000074748"
    assert found.bucket_code == 3_600
    assert {key: buckets.numbers().tolist() for key, buckets in found.entities.items()} == {
        '["AMD"]': [hour, hour + 5],
        '["NVDA"]': [hour, hour + 1, hour + 2],
    }
    assert found.whole.numbers().tolist() == [hour, hour + 1, hour + 2, hour + 5]
    assert encode_coverage(found) == data
    assert f"in the log {sidecar_checksum(data)}" in PAGES["coverage"]


def test_the_offset_table_of_a_sidecar_is_that_of_its_module():
    from thermocline.format import coverage

    table = rows(PAGES["coverage"], header=("offset", "size", "field"))
    fixed = [(int(at), int(size)) for at, size, _ in table if at.isdigit() and size.isdigit()]
    module = re.findall(r"^ {4}(\d+) +(\d+) +\S", coverage.__doc__, re.MULTILINE)
    assert fixed == [(int(at), int(size)) for at, size in module]


def test_a_checkpoint_made_by_the_page_alone_is_read(tmp_path):
    """Written here from the page's words with nothing but Arrow, read with the real code."""
    (state_text,) = blocks("checkpoint", "json state")
    (segment_text,) = blocks("checkpoint", "json segment")
    state, segment = state_text.encode(), orjson.loads(segment_text)
    kinds = {"string": pa.string(), "int64": pa.int64(), "binary": pa.binary()}
    table = rows(PAGES["checkpoint"], header=("column", "type", "meaning"))
    schema = pa.schema([(row[0].strip("`"), kinds[row[1]]) for row in table])
    made = pa.table(
        [[segment["segment_id"]], [-1], [3_599_000_000], [segment_text.encode()]], schema=schema
    ).replace_schema_metadata(
        {
            "thermocline": state,
            "thermocline.crc32c": f"crc32c:{google_crc32c.value(state):08x}",
        }
    )
    path = tmp_path / layout.checkpoint_path(100)
    path.parent.mkdir()
    pq.write_table(made, path)
    found = read_checkpoint(LocalStorage(str(tmp_path)), 100, _never)
    assert [encode_segment(one) for one in found.segments] == [segment]
    assert (found.version, found.marks, found.txns, found.oldest) == (
        100,
        {"hot": 7},
        {"nightly load": 42},
        3,
    )
    assert found.totals.digest == coverage_digest(
        segment["segment_id"], segment["coverage_checksum"]
    )
    today = pq.read_table(pa.BufferReader(encode_checkpoint(found)))
    assert today.drop_columns("segment").to_pylist() == made.drop_columns("segment").to_pylist()
    told, asked = orjson.loads(today.schema.metadata[b"thermocline"]), orjson.loads(state)
    # A segment's JSON has other spaces on the page, so its checksum is another.
    assert told.pop("checksums").keys() == asked.pop("checksums").keys()
    assert told == asked


def _never():
    raise AssertionError("the page's checkpoint is read without the log")


def test_the_fields_of_a_checkpoint_are_all_explained():
    (text,) = blocks("checkpoint", "json state")
    table = rows(PAGES["checkpoint"], header=("field", "meaning"))
    explained = [name for row in table for name in re.findall(r"`(\w+)`", row[0])]
    assert explained == list(orjson.loads(text))


def test_the_example_file_of_a_journal_is_the_golden_one_and_says_what_the_page_says():
    data = dumped("journal", "hex journal")
    assert data == (SALTED / "journal.wal").read_bytes()
    header = frame.decode_file_header(data)
    assert (header.number, header.first_lsn, header.salt) == (7, 41, 0xFEDC_BA98_7654_3210)
    assert header.previous_end == 16_777_300
    found = frame.decode_frame_header(header.journal_id, data, frame.FILE_HEADER_BYTES)
    assert (found.lsn, found.durable, found.kind) == (41, 40, frame.KIND_ROWS)
    assert found.tag == header.tag
    assert format_instant(found.written_ns) == "2024-06-01T00:00:00Z"
    assert frame.FILE_HEADER_BYTES + found.size_bytes == len(data)
    payload = data[136:146]
    assert payload == b"rows of it"
    assert frame.whole_payload(found, data, frame.FILE_HEADER_BYTES) == payload
    made = [frame.encode_file_header(header)]
    assert b"".join([*made, *frame.encode_frame(header.journal_id, found, payload)]) == data


def test_the_checksums_of_a_frame_are_found_by_the_rules_on_the_page():
    data = dumped("journal", "hex journal")
    for covered, stored in (
        (data[0:60], data[60:64]),
        (data[12:28] + data[64:132], data[132:136]),
        (data[12:28] + data[64:132] + data[136:146], data[146:150]),
    ):
        assert google_crc32c.value(covered).to_bytes(4, "little") == stored


def test_the_offset_tables_of_a_journal_are_those_of_its_module():
    tables = [("offset", "size", "field"), ("offset in the frame", "size", "field of a frame")]
    module = re.findall(r"^ {1,5}(\d+) +(\d+)  \S.*? {2,}(\d+) +(\d+|…)  ", frame.__doc__, re.M)
    left = [(int(at), int(size)) for at, size, *_ in module]
    rest = re.findall(r"^ {40,}(\d+) +(\d+)  ", frame.__doc__, re.MULTILINE)
    right = [(int(at), int(size)) for *_, at, size in module]
    right += [(int(at), int(size)) for at, size in rest]
    for header, expected in zip(tables, (left, right), strict=True):
        table = rows(PAGES["journal"], header=header)
        fixed = [(int(at), int(size)) for at, size, _ in table if at.isdigit() and size.isdigit()]
        assert fixed == expected
        assert all(at + size == after for (at, size), (after, _) in pairwise(fixed))
    assert f"{frame.PAYLOAD_BYTES_MAX:,}" in PAGES["journal"]


def test_the_example_watermark_and_identity_are_the_golden_ones():
    data = dumped("journal", "hex watermark")
    assert data == (GOLDEN / "durable").read_bytes()
    mark = folder.decode_watermark(data)
    assert (mark.visible, mark.durable, mark.number, mark.end) == (41, 40, 7, 150)
    header = ("offset in the watermark", "size", "field of the watermark")
    sizes = [(int(at), int(size)) for at, size, _ in rows(PAGES["journal"], header=header)]
    assert sum(sizes[-1]) == len(data)
    assert all(at + size == after for (at, size), (after, _) in pairwise(sizes))
    (text,) = blocks("journal", "json identity")
    assert text.strip().encode() == (GOLDEN / "journal.json").read_bytes()
    body, _, checksum = text.strip().rpartition(',"crc32c":')
    assert google_crc32c.value(f"{body}}}".encode()) == int(checksum.rstrip("}"))


def test_the_example_hole_reads_back_and_its_fields_are_all_explained():
    (text,) = blocks("journal", "json hole")
    hole = decode_hole(text.encode())
    assert orjson.loads(encode_hole(hole)) == orjson.loads(text)
    table = rows(PAGES["journal"], header=("field", "meaning"))
    explained = [name for row in table for name in re.findall(r"`(\w+)`", row[0])]
    assert explained == list(Damage.__slots__) == list(orjson.loads(text))


def test_the_folder_on_the_page_of_the_journal_is_that_of_its_module():
    def listed(text):
        return re.findall(r"^ {4}(journal/\w[\w./]*)", text, re.MULTILINE)

    assert listed(PAGES["journal"]) == listed(folder.__doc__)
    names = {folder.IDENTITY_NAME, folder.LOCK_NAME, folder.DURABLE_NAME, folder.QUARANTINE_NAME}
    found = {name.removeprefix("journal/").rstrip("/") for name in listed(PAGES["journal"])}
    names |= {folder.RETIRED_NAME}
    assert found == names | {folder.file_path("journal", 1).removeprefix("journal/")}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_tells_readers_and_writers_what_they_must(page):
    text = PAGES[page]
    for heading in ("## Versions", "## A reader must", "## A writer must"):
        assert text.count(heading) == 1, heading


def test_the_pages_speak_of_the_present_version():
    assert (FORMAT_VERSION, frame.FORMAT_VERSION) == (1, 2)
    assert "Format version 2." in PAGES["journal"]
    assert "Format version 1." in PAGES["log"]
    assert "Format version 1." in PAGES["coverage"]


def _classes():
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ThermoclineError)
    }


def test_every_error_class_is_on_the_page_of_errors_with_its_code_and_exit():
    header = ("class", "code", "the caller's move", "exit", "retry")
    table = rows((DOCS / "errors.md").read_text(), header=header)
    told = {row[0].strip("`"): (row[1].strip("`"), int(row[3])) for row in table}
    assert told == {
        name: (kind.code, find_answer(kind("no")).exit_code) for name, kind in _classes().items()
    }
    assert all(move and retry for _, _, move, _, retry in table)


def test_every_error_class_is_in_the_tree_of_its_module():
    for name, kind in _classes().items():
        assert re.search(rf"\b{name}\b", errors.__doc__), name
        assert kind.__doc__


def test_the_files_of_a_lake_are_read_and_written_as_the_page_says(tmp_path):
    (identity,), (name,) = blocks("lake", "json lake"), blocks("lake", "json name")
    catalog = Catalog(str(tmp_path))
    (tmp_path / "lake.json").write_text(identity.strip() + "\n")
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "metrics.json").write_text(name.strip() + "\n")
    told = orjson.loads(identity)
    assert catalog.identity() == LakeIdentity(told["lake_id"], told["journal_id"])
    fields = orjson.loads(name)
    named = CatalogEntry(fields["name"], fields["table_id"], fields["folder"])
    assert list(catalog) == [named]
    assert fields["lake_id"] == catalog.lake_id
    made = Catalog(str(tmp_path / "other"))
    made.make_folder()
    made.create_lake(told["journal_id"])
    written_lake = orjson.loads((tmp_path / "other" / "lake.json").read_bytes())
    assert written_lake.keys() == told.keys()
    made.create("Metrics", spec())
    written_name = orjson.loads((tmp_path / "other" / "names" / "metrics.json").read_bytes())
    assert written_name.keys() == orjson.loads(name).keys()
    (renamed,), (dropped,) = blocks("lake", "json renamed"), blocks("lake", "json dropped")
    made.rename("Metrics", "Points")
    (tmp_path / "names" / "metrics.json").write_text(renamed.strip() + "\n")
    assert [one.renamed_to for one in Catalog(str(tmp_path))] == ["Points"]
    made.drop("points")
    (written,) = (tmp_path / "other" / "dropped").iterdir()
    assert orjson.loads(written.read_bytes()).keys() == orjson.loads(dropped).keys()
    table = rows(PAGES["lake"], header=("field", "meaning"))
    explained = {field for row in table for field in re.findall(r"`(\w+)`", row[0])}
    assert explained == told.keys() | orjson.loads(name).keys()
