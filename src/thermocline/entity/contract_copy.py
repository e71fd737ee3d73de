"""Copies of a type's contracts in the lake, so that documents can be read without PostgreSQL.

In:   the contracts in PostgreSQL
Out:  `_contracts/<version>.json` in the table's folder, and the contracts read from there

- PostgreSQL stores the contracts; each process that opens or registers a type writes these copies.
  A missing copy does no harm while PostgreSQL is reachable.
- They are read only when PostgreSQL is not reachable.
"""

from collections.abc import Mapping
from contextlib import suppress

from thermocline.contract.contract import Contract
from thermocline.contract.register import stored_contract
from thermocline.contract.text import decode, encode_text
from thermocline.errors import Corruption, NotFound, ThermoclineError
from thermocline.format.layout import CONTRACTS_FOLDER, contract_path, contract_version
from thermocline.lake.table import Table


def copy_contracts(table: Table, contracts: Mapping[int, Contract]) -> None:
    """Write missing copies, and the newest if it differs; errors are ignored."""
    with suppress(ThermoclineError):
        there = _versions(table)
        newest = max(contracts)
        for version, contract in contracts.items():
            if version not in there or (version == newest and _read(table, version) != contract):
                table.storage.put_hint(contract_path(version), _text(contract))


def copied_contracts(table: Table) -> dict[int, Contract]:
    """Return the copied contracts by version; `NotFound` when there are no copies."""
    found = {version: _read(table, version) for version in _versions(table)}
    if not found:
        hint = "open the type once while PostgreSQL is running"
        raise NotFound("the lake has no copy of the contract", hint=hint)
    return found


def _versions(table: Table) -> list[int]:
    names = (item.path.rsplit("/", 1)[-1] for item in table.storage.list(CONTRACTS_FOLDER))
    return sorted(version for name in names if (version := contract_version(name)) is not None)


def _text(contract: Contract) -> bytes:
    told = {
        "version": contract.version,
        "document": contract.document,
        "columns": contract.columns_json,
    }
    return encode_text(told).encode()


def _read(table: Table, version: int) -> Contract:
    path = contract_path(version)
    try:
        told = decode(table.storage.read(path))
        return stored_contract(told["document"], told["version"], told["columns"])
    except (KeyError, TypeError, ValueError) as error:
        hint = "remove it: opening the type writes it again"
        raise Corruption("a copy of a contract cannot be read", hint=hint, path=path) from error
