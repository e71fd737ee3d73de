"""Copies of a type's contracts beside its rows: what the lake alone needs to give documents back.

In:   the contracts that PostgreSQL has
Out:  `_contracts/<version>.json` in the table's folder, and the contracts read from there

- PostgreSQL has the contracts; these are copies, made by whoever opens or registers the type. One
  that is missing or cannot be written costs nothing until PostgreSQL is gone.
- They are read only when PostgreSQL cannot be asked.
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
    """Write the copies that are missing, and the newest if it is another; trouble is ignored."""
    with suppress(ThermoclineError):
        there = _versions(table)
        newest = max(contracts)
        for version, contract in contracts.items():
            if version not in there or (version == newest and _read(table, version) != contract):
                table.storage.put_hint(contract_path(version), _text(contract))


def copied_contracts(table: Table) -> dict[int, Contract]:
    """Return the contracts that have copies; `NotFound` when none has."""
    found = {version: _read(table, version) for version in _versions(table)}
    if not found:
        hint = "open the type once while PostgreSQL is there"
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
        hint = "remove it: it is made again when the type is opened"
        raise Corruption("a copy of a contract cannot be read", hint=hint, path=path) from error
