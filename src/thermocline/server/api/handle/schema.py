"""The contracts of entity types over HTTP: register, read, check, export as a model's tool.

In:   a call on a route
Out:  typed values with every digit of the document

- A contract that is not compatible with its predecessor is refused, with every reason and pointer.
- A check is a dry run: it reports what registering would do, and changes nothing.
"""

from typing import Any

from thermocline.contract.contract import Contract
from thermocline.contract.document.canonical import json_form
from thermocline.contract.document.text import decode
from thermocline.contract.evolve.difference import diff_documents
from thermocline.contract.tool import tool_schema
from thermocline.errors import Invalid, NotFound
from thermocline.server.api.http.reply import exact_json
from thermocline.server.api.types import response_types
from thermocline.server.api.types.route import ApiRequest, ApiResponse


def types(call: ApiRequest) -> response_types.EntityTypesResponse:
    """List the caller's entity types."""
    return response_types.EntityTypesResponse(call.lake.entities.names())


def register(call: ApiRequest) -> ApiResponse:
    """Register a contract, or its next version."""
    lake, name = call.lake, call.path["type"]
    entities = lake.entities
    document = _document(call)
    quota = call.parts.quota.of(call.caller.tenant)
    if name not in entities.names():
        quota.check_tables(len(lake.tables()) + 1)
    lake.register(name, document)
    return exact_json(_contract_response(name, entities.registry.layout(name).contract))


def contract(call: ApiRequest) -> ApiResponse:
    """Return a version of a contract."""
    return exact_json(_contract_response(call.path["type"], _find_contract(call)))


def versions(call: ApiRequest) -> ApiResponse:
    """Return every version of a contract."""
    name = call.path["type"]
    found = call.lake.entities.registry.versions(name)
    return exact_json(response_types.Contracts([_contract_response(name, one) for one in found]))


def tool(call: ApiRequest) -> ApiResponse:
    """Return a contract as a tool that a language model fills in."""
    return exact_json(tool_schema(_find_contract(call), call.path["type"], form=call.params.form))


def check(call: ApiRequest) -> ApiResponse:
    """Report what registering a document would do."""
    registry = call.lake.entities.registry
    document = _document(call)
    try:
        before: Contract | None = registry.layout(call.path["type"]).contract
    except NotFound:
        before = None
    problems: list[dict[str, str]] = []
    try:
        registry.evolve(document, before)
    except Invalid as error:
        if "problems" not in error.facts:
            raise
        problems = error.facts["problems"]
    changes = [] if before is None else diff_documents(before.document, document)
    registered = None if before is None else before.version
    listed = [change.as_json() for change in changes]
    return exact_json(response_types.CheckedResponse(not problems, registered, problems, listed))


def _document(call: ApiRequest) -> Any:
    document = json_form(decode(call.body))
    if not isinstance(document, dict):
        raise Invalid("the contract is not a JSON object", hint="send a JSON Schema")
    return document


def _find_contract(call: ApiRequest) -> Contract:
    contracts = call.lake.entities.registry.layout(call.path["type"]).contracts
    version = call.params.version or max(contracts)
    if version not in contracts:
        hint = "`schema/versions` lists the versions"
        raise NotFound("no such version of the contract", hint=hint, version=version)
    return contracts[version]


def _contract_response(name: str, found: Contract) -> response_types.ContractResponse:
    columns = [
        response_types.ContractColumnResponse(
            column.id, column.name, str(column.type), column.is_hot
        )
        for column in found.columns
    ]
    return response_types.ContractResponse(name, found.version, found.mode, found.document, columns)
