"""Converts a contract to the definition of a tool for a language model.

In:   a contract and the name of its entity type
Out:  the tool's definition, in the form of the model's vendor

- The model gets the schema that validates: objects closed, references written out.
- Thermocline's keywords (`x-`) are omitted: they define how a value is stored, not what is valid.
"""

import re
from typing import Literal

from thermocline.contract.contract import Contract
from thermocline.contract.schema.subschema import Json, Node, with_subschemas
from thermocline.errors import Invalid

_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")


def tool_schema(
    contract: Contract,
    name: str,
    *,
    form: Literal["anthropic", "openai"] = "anthropic",
) -> Json:
    """Return the definition of a tool that takes one document of the contract."""
    if not _NAME.match(name):
        raise Invalid(
            "invalid tool name",
            hint="use 1 to 64 letters, digits, hyphens and underscores",
            name=name[:80],
        )
    schema = _without_extensions(contract.schema)
    described = contract.document.get("description") or contract.document.get("title") or name
    if form == "openai":
        function = {"name": name, "description": str(described), "parameters": schema}
        return {"type": "function", "function": function}
    return {"name": name, "description": str(described), "input_schema": schema}


def _without_extensions(node: Node) -> Node:
    if not isinstance(node, dict):
        return node
    kept = {word: value for word, value in node.items() if not word.startswith("x-")}
    return with_subschemas(kept, lambda _, inner: _without_extensions(inner))
