"""Copies of a type's contracts in the lake, so that documents can be read without PostgreSQL.

In:   the contracts in PostgreSQL
Out:  `_contracts/<version>.json` in the table's folder, and the contracts read from there

- PostgreSQL has the contracts; the process that opens or registers the type writes these copies.
  One that is missing or cannot be written costs nothing until PostgreSQL is gone.
- They are read only when PostgreSQL cannot be asked.
- Each has a checksum, and says its version and its table. One that is damaged is refused when it
  is read, and written again when the type is opened. Older releases wrote neither.
"""

from collections.abc import Mapping
from contextlib import suppress

from thermocline.cold.table import ColdTable
from thermocline.contract.contract import Contract
from thermocline.contract.document.text import decode, encode_text
from thermocline.contract.schema.register import restore_contract
from thermocline.errors import Corruption, NotFound, ThermoclineError
from thermocline.format.layout import CONTRACTS_FOLDER, contract_path, contract_version
from thermocline.format.sealed_json import seal_encoded, unseal

_UNSEALED = frozenset({"version", "document", "columns"})
_HINT = "remove it: it is made again when the type is opened"


def copy_contracts(table: ColdTable, contracts: Mapping[int, Contract]) -> None:
    """Write missing copies, and the newest if it differs; errors are ignored."""
    with suppress(ThermoclineError):
        table_id = table.state().spec.table_id
        for version, contract in contracts.items():
            data = _bytes(contract, table_id)
            if not _has(table, version, data):
                table.storage.put_hint(contract_path(version), data)


def _has(table: ColdTable, version: int, data: bytes) -> bool:
    try:
        return table.storage.read(contract_path(version)) == data
    except NotFound:
        return False


class _Copied(dict[int, Contract]):
    """The contracts that have copies; a row of any other version proves that a copy is lost."""

    def __missing__(self, version: int) -> Contract:
        raise Corruption(
            "the copy of a contract is missing",
            hint="it is made again when the type is opened while PostgreSQL is there",
            path=contract_path(version),
        )


def read_contract_copies(table: ColdTable) -> dict[int, Contract]:
    """Return the contracts that have copies; `NotFound` when none has."""
    found = _Copied((version, _read_copy(table, version)) for version in _copied_versions(table))
    if not found:
        hint = "open the type once while PostgreSQL is running"
        raise NotFound("the lake has no copy of the contract", hint=hint)
    return found


def _copied_versions(table: ColdTable) -> list[int]:
    names = (item.path.rsplit("/", 1)[-1] for item in table.storage.list(CONTRACTS_FOLDER))
    return sorted(version for name in names if (version := contract_version(name)) is not None)


def _bytes(contract: Contract, table_id: str) -> bytes:
    fields = {
        "table_id": table_id,
        "version": contract.version,
        "document": contract.document,
        "columns": contract.columns_json,
    }
    return seal_encoded(encode_text(fields).encode())


def _read_copy(table: ColdTable, version: int) -> Contract:
    path = contract_path(version)
    data = table.storage.read(path)
    unseal(data, path, hint=_HINT, unsealed_fields=_UNSEALED)
    try:
        found = decode(data)  # numbers as they were written
        if found["version"] != version:
            raise ValueError("it is a copy of another version")
        if found.get("table_id", table.state().spec.table_id) != table.state().spec.table_id:
            raise ValueError("it is a copy of another type's contract")
        return restore_contract(found["document"], version, found["columns"])
    except (KeyError, TypeError, ValueError) as error:
        raise Corruption(
            "a copy of a contract cannot be read", hint=_HINT, path=path, why=str(error)
        ) from error
