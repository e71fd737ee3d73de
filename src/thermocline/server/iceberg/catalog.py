"""The Iceberg REST catalogue: read-only, one namespace, which is the tenant of the key.

In:   requests below `/iceberg/v1`, with a key of scope `query`
Out:  Iceberg's JSON, and Iceberg's errors

- Loading a table renders its newest version; with `flush=true` the hot rows are flushed before.
- A client gets short-lived credentials for the files of the table that it loads, and no other.
- Every other request of the protocol is refused as an unsupported operation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from thermocline.error_table import find_answer
from thermocline.errors import NotFound, ThermoclineError
from thermocline.lake import Lake
from thermocline.server.access.guard import Caller
from thermocline.server.api.http.problem import HttpStatusError
from thermocline.server.iceberg.credentials import CredentialIssuer
from thermocline.server.iceberg.tables import ServedTable, ServedTables
from thermocline.show.scrub import scrub

ROOT = "/iceberg/v1"
REGION = "us-east-1"
NAMESPACE = f"{ROOT}/namespaces/{{namespace}}"
ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]


@dataclass(frozen=True, slots=True)
class CatalogRequest:
    """One request: its caller, what it names, and the address that the client used."""

    caller: Caller
    lake: Lake
    path: Mapping[str, str]
    params: Mapping[str, str]
    origin: str

    def check_namespace(self) -> None:
        """Raise `NotFound` unless the namespace is the caller's tenant."""
        if self.path["namespace"] != self.lake.tenant:
            raise NotFound(
                "no such namespace",
                hint="the only namespace is the tenant of the key",
                namespace=self.path["namespace"],
            )


class IcebergCatalog:
    """The routes of the catalogue; each blocks and is called on a thread."""

    def __init__(self, tables: ServedTables, issuer: CredentialIssuer) -> None:
        self._tables = tables
        self._issuer = issuer
        self.routes: dict[str, Callable[[CatalogRequest], Any]] = {
            f"{ROOT}/config": self.config,
            f"{ROOT}/namespaces": self.namespaces,
            NAMESPACE: self.namespace,
            f"{NAMESPACE}/tables": self.list_tables,
            f"{NAMESPACE}/tables/{{table}}": self.load_table,
        }

    def config(self, call: CatalogRequest) -> Any:
        """Return the settings of a client, and the endpoints that there are."""
        del call
        return {"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS}

    def namespaces(self, call: CatalogRequest) -> Any:
        """List the one namespace; it has none inside."""
        is_inner = bool(call.params.get("parent"))
        return {"namespaces": [] if is_inner else [[call.lake.tenant]]}

    def namespace(self, call: CatalogRequest) -> Any:
        """Return the namespace."""
        call.check_namespace()
        return {"namespace": [call.lake.tenant], "properties": {}}

    def list_tables(self, call: CatalogRequest) -> Any:
        """List the tables, also those that are refused when they are loaded."""
        call.check_namespace()
        namespace = [call.lake.tenant]
        names = call.lake.tables()
        return {"identifiers": [{"namespace": namespace, "name": name} for name in names]}

    def load_table(self, call: CatalogRequest) -> Any:
        """Return the metadata of a table and credentials for its files."""
        call.check_namespace()
        served = self._tables.find(call.lake, call.path["table"])
        wish = call.params.get("flush", "false").lower()
        if wish not in ("true", "false"):
            raise HttpStatusError("flush is true or false", hint="use flush=true", got=wish)
        if wish == "true":
            served.table.flush()
        done = served.publish()
        metadata = done.metadata
        if call.params.get("snapshots") == "refs":
            metadata = {**metadata, "snapshots": metadata["snapshots"][-1:]}
        return {
            "metadata-location": done.location,
            "metadata": metadata,
            "config": self._file_settings(served, call),
        }

    def _file_settings(self, served: ServedTable, call: CatalogRequest) -> dict[str, str]:
        """Return how a client reads the files, under the names that clients know."""
        made = self._issuer.issue(call.caller.key_id, served.digest)
        return {
            "s3.endpoint": call.origin,
            "s3.access-key-id": made.access_key,
            "s3.secret-access-key": made.secret,
            "s3.region": REGION,
            "client.region": REGION,
            "s3.path-style-access": "true",
            "s3.force-virtual-addressing": "false",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        }


def encode_error(error: BaseException, path: Mapping[str, str]) -> tuple[int, bytes]:
    """Return the status and the body of an error as Iceberg has it."""
    status = error.status if isinstance(error, HttpStatusError) else find_answer(error).http_status
    message = "the node has an internal error"
    if isinstance(error, ThermoclineError):
        message = scrub(error.message)
        facts = (f"{name}={scrub(str(fact))}" for name, fact in error.facts.items())
        shown = ", ".join(facts)
        message += f" ({shown})" if shown else ""
        message += f": {scrub(error.hint)}" if error.hint else ""
    kinds: dict[int, str] = {
        400: "BadRequestException",
        401: "NotAuthorizedException",
        403: "ForbiddenException",
        404: "NoSuchTableException" if "table" in path else "NoSuchNamespaceException",
        406: "UnsupportedOperationException",
        409: "CommitFailedException",
        429: "SlowDownException",
        503: "ServiceUnavailableException",
    }
    if status == 501:
        # A table that cannot be shown: clients try again on other errors of servers.
        status, kind = 400, "UnsupportedOperationException"
    else:
        kind = kinds.get(status, "ServerErrorException")
    body = {"error": {"message": message, "type": kind, "code": status}}
    return status, orjson.dumps(body)


def unsupported_operation() -> HttpStatusError:
    """Return the error for what a read-only catalogue does not do."""
    return HttpStatusError(
        "this catalogue is read-only and has no such operation",
        status=406,
        hint="write through Thermocline; read with GET and HEAD",
    )
