"""The Iceberg catalogue of a node: engines read its tables, and no key reads another's files."""

import datetime as dt
import hashlib
import hmac
import http.client
import os
from urllib.parse import quote

import httpx2
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchTableError,
    UnauthorizedError,
)

from fixtures.api import serving
from fixtures.lake import HOUR_US, JUNE_US
from interop.readers import comparable
from thermocline.server.iceberg.catalog import ENDPOINTS, ROOT
from thermocline.server.iceberg.credentials import CREDENTIALS_S

NAMESPACE = f"{ROOT}/namespaces/alpha"
TABLE = f"{NAMESPACE}/tables/secret"
ROUTES = [f"{ROOT}/config", f"{ROOT}/namespaces", NAMESPACE, f"{NAMESPACE}/tables", TABLE]


def rows(hour, count=4):
    times = [JUNE_US + hour * HOUR_US + n * 1_000_000 for n in range(count)]
    values = pa.array([hour * 10 + n for n in range(count)])
    return pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "v": values})


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("node"), has_keys=True) as served:
        for tenant in ("alpha", "beta"):
            lake = served.node.create_tenant(tenant)
            table = lake.create_table("secret", time_column="ts", bucket="1h", overlap="allow")
            for hour in range(3):
                table.append(rows(hour))
            table.rename_column("v", "w")
            table.delete(start="2024-06-01T00:00:00Z", end="2024-06-01T00:00:02Z")
            odd = lake.create_table("odd", time_column="ts", bucket="1h")
            odd.append(rows(0).append_column("u", pa.array([1] * 4, pa.uint64())))
        with httpx2.Client(base_url=served.url, timeout=60) as served.stranger:
            yield served


def connected(node, tenant="alpha", **more):
    key = node.new_key(tenant, ["query"])
    return load_catalog("node", type="rest", uri=f"{node.url}/iceberg", token=key, **more)


def table_of(node, tenant="alpha", name="secret"):
    return node.node.lake(tenant).table(name)


def test_pyiceberg_finds_and_reads_every_version_through_the_node(node):
    catalog = connected(node)
    assert catalog.list_namespaces() == [("alpha",)]
    assert {("alpha", "odd"), ("alpha", "secret")} <= set(catalog.list_tables("alpha"))
    assert catalog.table_exists("alpha.secret")
    assert not catalog.table_exists("alpha.nothing")
    table, ours = catalog.load_table("alpha.secret"), table_of(node)
    assert comparable(table.scan().to_arrow()) == comparable(ours.to_arrow())
    for snapshot in table.snapshots():
        theirs = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert comparable(theirs) == comparable(ours.to_arrow(at=snapshot.snapshot_id))


def test_polars_reads_through_the_node(node):
    table = connected(node).load_table("alpha.secret")
    found = pl.scan_iceberg(table, reader_override="pyiceberg").collect().to_arrow()
    assert comparable(found) == comparable(table_of(node).to_arrow())


def test_hot_rows_appear_with_their_flush(node):
    lake = node.node.lake("alpha")
    table = lake.create_table("warm", time_column="ts", bucket="1h")
    table.append(rows(0))
    table.write(rows(1))
    key = node.new_key("alpha", ["query"])
    path, headers = f"{NAMESPACE}/tables/warm", dict(bearer(key))

    def newest(**params):
        answer = node.stranger.get(path, headers=headers, params=params).json()
        return answer["metadata"]["current-snapshot-id"]

    assert newest() == 2
    assert newest(flush="true") == 3
    assert connected(node).load_table("alpha.warm").scan().to_arrow().num_rows == 8
    assert node.stranger.get(path, headers=headers, params={"flush": "x"}).status_code == 400


def test_a_table_that_cannot_be_shown_is_refused_by_name(node):
    with pytest.raises(BadRequestError, match="column=u"):
        connected(node).load_table("alpha.odd")


def test_the_configuration_names_the_endpoints_that_there_are(node):
    answer = node.stranger.get(f"{ROOT}/config", headers=bearer(node.new_key("alpha")))
    assert answer.json()["endpoints"] == ENDPOINTS
    inner = node.stranger.get(
        f"{ROOT}/namespaces?parent=alpha", headers=bearer(node.new_key("alpha"))
    )
    assert inner.json() == {"namespaces": []}


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


# Who may do what.


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ROUTES)
def test_A02_every_route_of_the_catalogue_needs_a_key_with_the_scope(node, path, method):
    def status(headers):
        return node.stranger.request(method, path, headers=headers).status_code

    revoked = node.store.create("alpha", ["query"])
    node.store.revoke(revoked.key.key_id)
    node.guard.reload()
    good = bearer(node.new_key("alpha", ["query"]))
    assert status(good) in (200, 204)
    assert status([]) == 401
    assert status(bearer("tck_nothing1_" + "a" * 43)) == 401
    assert status(bearer(revoked.text)) == 401
    assert status([*good, *good]) == 401
    for scope in ("ingest", "admin"):
        assert status(bearer(node.new_key("alpha", [scope]))) == 403
    is_alpha = "alpha" in path
    assert (status(bearer(node.new_key("beta"))) == 404) == is_alpha


def test_errors_have_the_form_of_iceberg(node):
    catalog = connected(node)
    with pytest.raises(NoSuchTableError):
        catalog.load_table("alpha.nothing")
    with pytest.raises(UnauthorizedError):
        load_catalog("n", type="rest", uri=f"{node.url}/iceberg", token="wrong")
    key = node.new_key("alpha", ["ingest"])
    with pytest.raises(ForbiddenError):
        load_catalog("n", type="rest", uri=f"{node.url}/iceberg", token=key)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", [*ROUTES, f"{TABLE}/metrics", f"{ROOT}/transactions/commit"])
def test_every_write_is_refused_as_an_unsupported_operation(node, path, method):
    before = table_of(node).version()
    headers = bearer(node.new_key("alpha"))
    answer = node.stranger.request(method, path, headers=headers)
    assert answer.status_code == 406
    assert answer.json()["error"]["type"] == "UnsupportedOperationException"
    assert node.stranger.request(method, path).status_code == 401
    assert table_of(node).version() == before


# The files.


class Signer:
    """Signs requests as Amazon's documents say, written apart from the code that checks them."""

    def __init__(self, node, settings):
        self.node = node
        self.access_key = settings["s3.access-key-id"]
        self.secret = settings["s3.secret-access-key"]

    def request(self, path, method="GET", query="", **more):
        """Send a signed request with a client that resolves the dots of a path."""
        url, headers = self.sign(path, method, query, **more)
        return self.node.stranger.request(method, url, headers=headers)

    def raw_status(self, path):
        """Send a signed request with its path as it is; return the status."""
        url, headers = self.sign(path)
        connection = http.client.HTTPConnection(headers["host"], timeout=60)
        connection.request("GET", url, headers=headers)
        answer = connection.getresponse()
        assert b"PAR1" not in answer.read()
        connection.close()
        return answer.status

    def sign(self, path, method="GET", query="", *, when=None, change=(), **headers):
        """Return the address and the headers of a signed request."""
        when = when or dt.datetime.now(dt.UTC)
        stamp, day = f"{when:%Y%m%dT%H%M%SZ}", f"{when:%Y%m%d}"
        payload = hashlib.sha256(b"").hexdigest()
        host = self.node.url.partition("//")[2]
        signed = {"host": host, "x-amz-content-sha256": payload, "x-amz-date": stamp, **headers}
        names = ";".join(sorted(signed))
        lines = [f"{name}:{signed[name]}\n" for name in sorted(signed)]
        canonical = "\n".join([method, quote(path), query, "".join(lines), names, payload])
        scope = f"{day}/us-east-1/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = b"AWS4" + self.secret.encode()
        for part in (*scope.split("/"),):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        given = f"Credential={self.access_key}/{scope}"
        value = f"AWS4-HMAC-SHA256 {given}, SignedHeaders={names}, Signature={signature}"
        sent = {**signed, "authorization": value, **dict(change)}
        url = quote(path) + (f"?{query}" if query else "")
        return url, sent


def loaded(node, tenant="alpha", name="secret", key=None):
    """Return a signer for a table of a tenant, and the addresses of its files."""
    key = key or node.new_key(tenant, ["query"])
    path = f"{ROOT}/namespaces/{tenant}/tables/{name}"
    answer = node.stranger.get(path, headers=bearer(key)).json()
    listed = answer["metadata"]["snapshots"][-1]["manifest-list"].removeprefix("s3:/")
    return Signer(node, answer["config"]), listed


def segment_paths(node, tenant="alpha", name="secret"):
    table = table_of(node, tenant, name)
    return [f"/thermocline/{tenant}/{name}/{one.path}" for one in table.cold.state().segments]


def test_a_signed_request_reads_a_file_whole_and_in_ranges(node):
    signer, _ = loaded(node)
    path = segment_paths(node)[0]
    whole = signer.request(path)
    data = whole.content
    assert (whole.status_code, data[:4], data[-4:]) == (200, b"PAR1", b"PAR1")
    head = signer.request(path, "HEAD")
    assert (head.status_code, int(head.headers["content-length"])) == (200, len(data))
    assert head.content == b""
    for text, expected in {
        "bytes=0-3": data[:4],
        "bytes=4-": data[4:],
        "bytes=-8": data[-8:],
        f"bytes=2-{10**15}": data[2:],
    }.items():
        part = signer.request(path, range=text)
        assert (part.status_code, part.content) == (206, expected)
        start = len(data) - len(expected) if not text.startswith("bytes=0") else 0
        said = f"bytes {start}-{start + len(expected) - 1}/{len(data)}"
        assert part.headers["content-range"] == said
    for text in (f"bytes={len(data)}-", "bytes=9-3", "bytes=-0"):
        assert signer.request(path, range=text).status_code == 416
    assert signer.request(path, range="bytes=x").content == data


def test_A03_no_path_reaches_a_file_that_no_snapshot_names(node):
    signer, listed = loaded(node)
    assert signer.request(listed).status_code == 200
    log = "_log/00000000000000000001.json"
    mine, theirs = segment_paths(node)[0], segment_paths(node, "beta")[0]
    inside = mine.removeprefix("/thermocline/alpha/secret/")
    for path in (
        f"/thermocline/alpha/secret/{log}",
        "/thermocline/alpha/secret/_log/CURRENT",
        "/thermocline/alpha/secret/",
        "/thermocline/alpha/secret",
        "/thermocline/alpha/secret/data",
        "/thermocline/",
        f"/thermocline/alpha/secret/../secret/{inside}",
        f"/thermocline/alpha/secret/./{inside}",
        f"/thermocline/alpha/secret//{inside}",
        f"/thermocline/alpha/SECRET/{inside}",
        f"/thermocline/alpha/odd/{inside}",
        f"/thermocline/beta/secret/{inside}",
        f"/thermocline/nobody/secret/{inside}",
        f"/thermocline/alpha/secret/../../beta/secret/{theirs.rpartition('secret/')[2]}",
        "/thermocline/alpha/secret/../../../../../../etc/passwd",
        "/thermocline/alpha/secret/%2e%2e/%2e%2e/lake.json",
        theirs,
    ):
        for headers in ({}, {"range": "bytes=0-3"}):
            answer = signer.request(path, **headers)
            # The client resolves dots itself, and may leave the folder of the files.
            assert answer.status_code in ((403, 404) if "../.." in path else (403,)), path
            assert b"PAR1" not in answer.content
        assert signer.raw_status(path) == 403, path
    their_signer, _ = loaded(node, "beta")
    assert their_signer.request(theirs).status_code == 200
    assert their_signer.request(mine).status_code == 403


def test_A03_credentials_of_one_table_open_no_other_table_of_the_tenant(node):
    other = node.node.lake("alpha").create_table("other", time_column="ts", bucket="1h")
    other.append(rows(0))
    signer, listed = loaded(node, "alpha", "other")
    assert signer.request(listed).status_code == 200
    assert signer.request(segment_paths(node)[0]).status_code == 403


def test_A03_a_request_that_was_changed_after_it_was_signed_is_refused(node):
    signer, _ = loaded(node)
    path = segment_paths(node)[0]
    good = signer.request(path)
    assert good.status_code == 200
    signature = good.request.headers["authorization"]

    def changed(**headers):
        return signer.request(path, change=headers.items()).status_code

    assert changed(authorization="") == 403
    assert changed(authorization=signature[:-1] + ("0" if signature[-1] != "0" else "1")) == 403
    assert changed(authorization=signature.replace("Signature=", "Signature=0")) == 403
    assert changed(authorization=f"Bearer {node.new_key('alpha')}") == 403
    assert changed(**{"x-amz-date": "20240101T000000Z"}) == 403
    assert changed(**{"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}) == 403
    assert changed(host="example.org") == 403
    assert changed(**{"x-amz-meta-added": "later"}) == 403
    assert signer.request(path, query="list-type=2").status_code == 403
    assert signer.request(path, query="uploads=").status_code == 403
    assert node.stranger.get(path).status_code == 403
    for method in ("PUT", "POST", "DELETE"):
        assert signer.request(path, method).status_code == 403
    signer.secret = signer.secret[:-1] + "A"
    assert signer.request(path).status_code == 403


def test_A03_a_forged_access_key_has_no_secret_that_a_stranger_knows(node):
    signer, _ = loaded(node)
    theirs, _ = loaded(node, "beta")
    signer.access_key = theirs.access_key
    assert signer.request(segment_paths(node, "beta")[0]).status_code == 403


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_signature_of_another_time_is_refused(node, minutes):
    signer, _ = loaded(node)
    when = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
    assert signer.request(segment_paths(node)[0], when=when).status_code == 403


def test_A04_credentials_end_with_the_key_that_loaded_the_table(node):
    key = node.store.create("alpha", ["query"])
    node.guard.reload()
    signer, _ = loaded(node, key=key.text)
    path = segment_paths(node)[0]
    assert signer.request(path).status_code == 200
    node.store.revoke(key.key.key_id)
    node.guard.reload()
    assert signer.request(path).status_code == 403


def test_credentials_end_with_their_time(node, monkeypatch):
    signer, _ = loaded(node)
    path = segment_paths(node)[0]
    assert signer.request(path).status_code == 200
    later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=CREDENTIALS_S + 5)
    issuer = node.app.state.iceberg.issuer
    monkeypatch.setattr(issuer, "now_s", later.timestamp)
    assert signer.request(path, when=later).status_code == 403


def test_a_file_with_other_bytes_than_were_committed_is_not_sent(node):
    lake = node.node.lake("alpha")
    table = lake.create_table("torn", time_column="ts", bucket="1h")
    table.append(rows(0))
    signer, _ = loaded(node, "alpha", "torn")
    (segment,) = table.cold.state().segments
    flip_byte(f"{table.root()}/{segment.path}")
    assert signer.request(segment_paths(node, "alpha", "torn")[0]).status_code == 500


def flip_byte(path):
    with open(path, "r+b") as file:
        file.seek(20)
        byte = file.read(1)
        file.seek(20)
        file.write(bytes([byte[0] ^ 1]))


def test_D01_no_damaged_file_of_an_older_version_or_of_the_metadata_is_sent(node):
    lake = node.node.lake("alpha")
    table = lake.create_table("past", time_column="ts", bucket="1h", overlap="replace")
    table.append(rows(0))
    (segment,) = table.cold.state().segments
    past = f"/thermocline/alpha/past/{segment.path}"
    table.append(rows(0))
    table.delete(start="2024-06-01T00:00:00Z", end="2024-06-01T00:00:02Z")
    assert segment.path not in {one.path for one in table.cold.state().segments}
    signer, listed = loaded(node, "alpha", "past")
    folder = os.path.dirname(listed)
    served = [past, *(f"{folder}/{name}" for name in os.listdir(f"{table.root()}/_iceberg"))]
    served = [one for one in served if not one.endswith(".text")]
    assert [signer.request(one).status_code for one in served] == [200] * len(served)
    for one in served:
        flip_byte(f"{table.root()}/{one.removeprefix('/thermocline/alpha/past/')}")
    assert [signer.request(one).status_code for one in served] == [500] * len(served)


def test_a_node_without_keys_serves_its_tables_to_this_machine(tmp_path):
    with serving(tmp_path) as served:
        table = served.node.lake().create_table("open", time_column="ts", bucket="1h")
        table.append(rows(0))
        catalog = load_catalog("node", type="rest", uri=f"{served.url}/iceberg")
        assert catalog.load_table("default.open").scan().to_arrow().num_rows == 4
