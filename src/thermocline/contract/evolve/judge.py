"""Judges a document as a contract, in a process that may be ended.

In:   a document, and the contract that it would follow, as bytes
Out:  the refusals as bytes; or the error of a document that is no contract at all

A proof of compatibility may take exponential time, and nothing interrupts it. So a node lets a
worker process judge, with a deadline, and trusts only the verdict.
"""

import time
from typing import Any

from thermocline.contract.contract import Contract
from thermocline.contract.document.text import decode, encode_text
from thermocline.contract.evolve.compatible import evolve_contract
from thermocline.contract.schema.register import parse_contract, restore_contract
from thermocline.errors import Invalid

PARSE_S_MAX = 1.0
"""The most processor time that parsing a contract may take; the node must parse it as well."""


def pack_case(document: Any, previous: Contract | None) -> bytes:
    """Return a document and the contract that it would follow as bytes."""
    before = None
    if previous is not None:
        before = {
            "document": previous.document,
            "version": previous.version,
            "columns": previous.columns_json,
        }
    return encode_text({"document": document, "previous": before}).encode()


def judge_contract(case: bytes) -> bytes:
    """Return the verdict about a case of `pack_case`; errors are those of `evolve_contract`."""
    given = decode(case)
    document, before = given["document"], given["previous"]
    began_s = time.process_time()
    previous = None
    if before is not None:
        previous = restore_contract(before["document"], before["version"], before["columns"])
    parse_contract(document, previous)
    parse_s = time.process_time() - began_s
    if parse_s > PARSE_S_MAX:
        raise Invalid(
            "the contract takes too long to read",
            hint="use fewer combined schemas and simpler patterns",
            parse_s_max=PARSE_S_MAX,
        )
    if previous is not None:
        evolve_contract(document, previous)
    return b"{}"
