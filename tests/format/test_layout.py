"""Names inside a table's folder: from meaning to path and back, and never out of the folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import instants
from thermocline.errors import Corruption
from thermocline.format import layout
from thermocline.format.instant import TIME_MAX, TIME_MIN, TimeNs, format_instant

versions = st.integers(1, 10**20 - 1)

BAD_PATHS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "../../other/t.parquet",
    "data/../../x",
    "data/..",
    "./data/x",
    "data/./x",
    "data//x",
    "data/",
    "data\\x",
    "..\\..\\x",
    "C:/x",
    "data/x:stream",
    "data/\x00",
    "data/x\x00.parquet",
    "data/x\n",
    "data/x\r",
    "..\n/x",
    "data/\x1b[2J",
    "a" * 1025,
    "a/" * 600 + "a",
]


@given(versions)
def test_the_names_of_a_version_are_read_back_as_that_version(version):
    pairs = [
        (layout.commit_path, layout.commit_version),
        (layout.checkpoint_path, layout.checkpoint_version),
        (layout.base_path, layout.base_version),
        (layout.table_coverage_path, layout.table_coverage_version),
    ]
    for path_of, version_of in pairs:
        path = path_of(version)
        assert layout.check_relative_path(path) == path
        name = path.rpartition("/")[2]
        assert version_of(name) == version
        assert sum(of(name) is not None for _, of in pairs) == 1


@given(st.lists(versions, min_size=2))
def test_names_of_commits_sort_as_their_versions_do(found):
    assert sorted(map(layout.commit_path, found)) == list(map(layout.commit_path, sorted(found)))


@pytest.mark.parametrize(
    "name",
    [
        "7.json",
        "0000000000000000007.json",
        "000000000000000000007.json",
        "00000000000000000007.json.tmp",
        ".00000000000000000007.json",
        "00000000000000000007.json\n",
        "00000000000000000007xjson",
        "0000000000000000000a.json",
        "\u0660" * 20 + ".json",
        "-0000000000000000007.json",
        "CURRENT",
        "",
    ],
)
def test_a_foreign_name_is_of_no_version(name):
    assert layout.commit_version(name) is None
    assert layout.checkpoint_version(name.replace("json", "checkpoint.parquet")) is None
    assert layout.table_coverage_version(name.replace("json", "roar")) is None


@pytest.mark.parametrize(
    ("instant", "folder"),
    [
        (TIME_MIN, "0001/01/01/00"),
        (TIME_MAX, "9999/12/31/23"),
        (-1, "1969/12/31/23"),
        (0, "1970/01/01/00"),
        (1_717_200_000_000_000_000 - 1, "2024/05/31/23"),
    ],
)
def test_a_segment_lies_in_the_folder_of_its_first_hour(instant, folder):
    assert layout.segment_path(TimeNs(instant), "id") == f"data/{folder}/id.parquet"


@given(instants)
def test_the_folder_of_a_segment_is_the_start_of_its_written_time(instant):
    folder = layout.segment_path(instant, "id").removeprefix("data/").removesuffix("/id.parquet")
    assert format_instant(instant).startswith("{}-{}-{}T{}:".format(*folder.split("/")))


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_is_not_plainly_inside_the_table_is_refused(path):
    with pytest.raises(Corruption) as caught:
        layout.check_relative_path(path)
    assert len(caught.value.facts["path"]) <= 200


@given(st.text(max_size=30))
def test_what_is_accepted_cannot_leave_the_folder(path):
    try:
        layout.check_relative_path(path)
    except Corruption:
        return
    parts = path.split("/")
    assert not {"", ".", ".."} & set(parts)
    assert not set(path) & set("\\:\x00\n\r\t")


@pytest.mark.parametrize(
    "path", ["a", "data/x y.parquet", "data/h\u00e9.parquet", "data/..x", "data/x..", "data/%2e%2e"]
)
def test_an_unusual_but_plain_path_is_accepted(path):
    assert layout.check_relative_path(path) == path


def test_temporary_names_are_told_by_their_dot():
    assert layout.is_temporary(".abc.tmp")
    assert not layout.is_temporary("00000000000000000007.json")


def test_pins_and_sidecars_have_names_of_their_own():
    assert layout.pin_path("p") == "_pins/p.json"
    assert layout.segment_coverage_path("c") == "_coverage/segments/c.roar"
