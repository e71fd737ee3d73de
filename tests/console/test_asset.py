"""The files of the page: built from the sources at hand, small, and sent safely."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import duckdb
import pytest

from fixtures.api import serving
from thermocline.errors import NotFound
from thermocline.server.console.asset import POLICY, asset, assets

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "console"
BUILT = REPOSITORY / "src" / "thermocline" / "server" / "console" / "built"
FIRST_LOAD_BYTES_MAX = 250_000
SOURCE_LINES_MAX = 400
LEFT_OUT = {"node_modules", ".gitignore", ".npmrc"}


def digests(root, left_out=()):
    """Return the digest of every file below a folder, by its path."""
    found = [path for path in sorted(root.rglob("*")) if path.is_file()]
    named = {path.relative_to(root).as_posix(): path for path in found}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in named.items()
        if not set(name.split("/")) & set(left_out)
    }


def test_the_files_were_built_from_the_sources_at_hand():
    record = json.loads((BUILT / "record.json").read_text())
    told = "the sources changed: run `npm ci && npm run build` in console/"
    assert digests(SOURCES, LEFT_OUT) == record["sources"], told
    assert digests(BUILT, {"record.json"}) == record["built"], "a built file was changed by hand"


def test_a_source_that_is_changed_is_noticed(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "node_modules").mkdir()
    for name in ("src/a.ts", "node_modules/b.js"):
        (tmp_path / name).write_text("one")
    before = digests(tmp_path, LEFT_OUT)
    assert before.keys() == {"src/a.ts"}
    (tmp_path / "src" / "a.ts").write_text("two")
    assert digests(tmp_path, LEFT_OUT) != before


def test_the_first_load_is_small():
    page = asset("index.html").plain.decode()
    named = re.findall(r"(?:src|href)=\"\./console/([^\"]+)\"", page)
    assert {"index.js", "index.css"} <= set(named)
    # The query is the first screen: its editor and its decoder come with it.
    loaded = {*named, "index.html", "editor.js", "arrow.js", "grid.js"}
    size_bytes = sum(len(gzip.compress(asset(name).plain)) for name in loaded)
    assert size_bytes <= FIRST_LOAD_BYTES_MAX
    everything = sum(len(one.compressed) for one in assets().values())
    assert everything <= FIRST_LOAD_BYTES_MAX, "and so is all of it"


def test_A15_the_page_has_no_script_or_style_inside_and_names_no_other_host():
    page = asset("index.html").plain.decode()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page) == [""]
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|//", page.replace("!--", ""))
    for source in (SOURCES / "src").rglob("*.ts*"):
        text = source.read_text()
        assert "innerHTML" not in text
        assert "dangerouslySetInnerHTML" not in text


def test_no_registry_is_named_in_the_lock_file():
    lock = json.loads((SOURCES / "package-lock.json").read_text())
    assert lock["packages"]
    assert not [name for name, one in lock["packages"].items() if "resolved" in one]


def test_the_lock_file_has_all_that_an_exact_install_asks_for_on_every_platform():
    packages = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    named = {
        needed
        for one in packages.values()
        for kind in ("dependencies", "devDependencies", "optionalDependencies")
        for needed in one.get(kind, {})
    }
    assert any("darwin" in name for name in named)
    assert not [name for name in named if f"node_modules/{name}" not in packages]
    assert not [name for name, one in packages.items() if name and "integrity" not in one]


def test_a_source_is_one_thing():
    for path in (SOURCES / "src").rglob("*.*"):
        lines = path.read_text().splitlines()
        assert len(lines) <= SOURCE_LINES_MAX, path.name
        assert lines[0].startswith(("// ", "/* ")), f"{path.name} does not say what it is"


def test_a_name_that_was_not_built_is_not_found():
    for name in ("", "..", "../record.json", "record.json", "licences.txt", "index.js.map"):
        with pytest.raises(NotFound):
            asset(name)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("node"), has_keys=True) as served:
        yield served


def test_the_page_and_its_files_need_no_key_and_come_with_their_policy(node):
    with node.client(key="") as client:
        for path in ("/", *(f"/console/{name}" for name in assets() if name != "index.html")):
            answer = client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["content-encoding"] == "gzip"
            assert "unsafe" not in POLICY
            again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            plain = client.get(path, headers={"Accept-Encoding": "identity"})
            assert "content-encoding" not in plain.headers
            assert plain.content == answer.content
        assert client.get("/console/nothing.js").status_code == 404
        assert client.get("/console/..%2Frecord.json").status_code == 404
        assert client.get("/api/v1/words").status_code == 401


def test_words_are_those_of_the_callers_own_tables(node):
    node.node.create_tenant("other")
    with node.client() as mine, node.client(node.new_key("other")) as others:
        body = {"name": "mine", "time_column": "ts", "bucket": "1h"}
        mine.post("/api/v1/tables", json=body)
        rows = {"ts": "2024-06-01T00:00:00", "depth": 3.5}
        mine.post("/api/v1/tables/mine/rows", json=rows)
        words = mine.get("/api/v1/words").json()
        assert words["tables"] == [{"name": "mine", "columns": ["ts", "depth"]}]
        assert "date_trunc" in words["functions"]
        assert "gaps" in words["table_functions"]
        assert others.get("/api/v1/words").json()["tables"] == []


def test_the_page_quotes_every_name_that_sql_takes_for_a_keyword():
    text = (SOURCES / "src" / "screen" / "sql.ts").read_text()
    quoted = set(text.split("KEYWORDS = new Set(")[1].split("`")[1].split())
    asked = """select keyword_name from duckdb_keywords()
        where keyword_category in ('reserved', 'type_function')"""
    with duckdb.connect() as engine:
        assert quoted == {word for (word,) in engine.sql(asked).fetchall()}
