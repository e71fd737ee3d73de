"""A contract as a tool that a language model is given to fill in.

In:   a contract and the name of its entity type
Out:  the tool's definition, in the form that the model's maker asks for

- What the model is given is what is checked: objects closed, references written out.
- Words of our own (`x-`) are left out: they say how a value is kept, not what it is.
"""

import re
from typing import Literal

from thermocline.contract.contract import Contract
from thermocline.contract.subschema import Json, Node, with_subschemas
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
            "not a name of a tool",
            hint="use 1 to 64 letters, digits, hyphens and underscores",
            name=name[:80],
        )
    schema = _plain(contract.schema)
    described = contract.document.get("description") or contract.document.get("title") or name
    if form == "openai":
        function = {"name": name, "description": str(described), "parameters": schema}
        return {"type": "function", "function": function}
    return {"name": name, "description": str(described), "input_schema": schema}


def _plain(node: Node) -> Node:
    if not isinstance(node, dict):
        return node
    kept = {word: value for word, value in node.items() if not word.startswith("x-")}
    return with_subschemas(kept, lambda _, inner: _plain(inner))
