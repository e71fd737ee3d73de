"""The contracts of entity types over HTTP: register, read, check, export as a model's tool.

In:   a call on a route
Out:  typed values with every digit of the document

- A contract that is not compatible with its predecessor is refused, with every reason and pointer.
- A check is a dry run: it reports what registering would do, and changes nothing.
"""

from typing import Any

from thermocline.contract.contract import Contract
from thermocline.contract.document.canonical import json_form
from thermocline.contract.document.text import decode, encode_text
from thermocline.contract.evolve.compatible import evolved
from thermocline.contract.evolve.difference import diff
from thermocline.contract.schema.register import parse_contract
from thermocline.contract.tool import tool_schema
from thermocline.errors import Invalid, NotFound
from thermocline.server.api.types import response_types
from thermocline.server.api.types.route import Call, Done


def exact(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Done:
    """Encode an answer so that its numbers keep all digits."""
    return Done(encode_text(value).encode(), status, headers=headers or {})


def types(call: Call) -> response_types.EntityTypes:
    """List the caller's entity types."""
    return response_types.EntityTypes(call.lake.entities.names())


def register(call: Call) -> Done:
    """Register a contract, or its next version."""
    lake, name = call.lake, call.path["type"]
    entities = lake.entities
    document = _document(call)
    quota = call.parts.quota.of(call.caller.tenant)
    if name not in entities.names():
        quota.check_tables(len(lake.tables()) + 1)
    lake.register(name, document)
    return exact(_told(name, entities.registry.layout(name).contract))


def contract(call: Call) -> Done:
    """Return a version of a contract."""
    return exact(_told(call.path["type"], _found(call)))


def versions(call: Call) -> Done:
    """Return every version of a contract."""
    name = call.path["type"]
    found = call.lake.entities.registry.versions(name)
    return exact(response_types.Contracts([_told(name, one) for one in found]))


def tool(call: Call) -> Done:
    """Return a contract as a tool that a language model fills in."""
    return exact(tool_schema(_found(call), call.path["type"], form=call.asked.form))


def check(call: Call) -> Done:
    """Report what registering a document would do."""
    registry = call.lake.entities.registry
    document = _document(call)
    try:
        before: Contract | None = registry.layout(call.path["type"]).contract
    except NotFound:
        before = None
    problems: list[dict[str, str]] = []
    try:
        if before is None:
            parse_contract(document)
        else:
            evolved(document, before)
    except Invalid as error:
        if "problems" not in error.facts:
            raise
        problems = error.facts["problems"]
    changes = [] if before is None else diff(before.document, document)
    registered = None if before is None else before.version
    told = [change.as_json() for change in changes]
    return exact(response_types.Checked(not problems, registered, problems, told))


def _document(call: Call) -> Any:
    document = json_form(decode(call.body))
    if not isinstance(document, dict):
        raise Invalid("a contract is a JSON object", hint="send a JSON Schema")
    return document


def _found(call: Call) -> Contract:
    contracts = call.lake.entities.registry.layout(call.path["type"]).contracts
    version = call.asked.version or max(contracts)
    if version not in contracts:
        hint = "`schema/versions` lists the versions"
        raise NotFound("no such version of the contract", hint=hint, version=version)
    return contracts[version]


def _told(name: str, found: Contract) -> response_types.Contract:
    columns = [
        response_types.ContractColumn(column.id, column.name, str(column.type), column.is_hot)
        for column in found.columns
    ]
    return response_types.Contract(name, found.version, found.mode, found.document, columns)
