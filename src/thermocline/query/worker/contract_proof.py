"""Lets a query worker prove that a contract may follow another.

In:   a pool, a tenant, a document, the contract that it would follow
Out:  the new contract; `Invalid` when it is refused, or not proved in time

The worker parses and proves, within its memory limit and `PROOF_S`. The node then only parses.
"""

from typing import Any

from thermocline.contract.contract import Contract
from thermocline.contract.document.text import value_problems
from thermocline.contract.evolve.judge import pack_case
from thermocline.contract.schema.pointer import Refusal, refusal_error
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Overloaded, QueryTimeout
from thermocline.query.worker.pool import QueryPool

PROOF_S = 10.0
JUDGE = "judge_contract"


def evolve_in_worker(
    pool: QueryPool, tenant: str, document: Any, previous: Contract | None
) -> Contract:
    """Return the contract of a document that may follow the previous one; else `Invalid`."""
    # Other documents cannot be packed, and are refused below.
    if isinstance(document, dict) and not value_problems(document):
        try:
            pool.run_task(JUDGE, pack_case(document, previous), tenant=tenant, timeout_s=PROOF_S)
        except Overloaded as error:
            if not isinstance(error, QueryTimeout) and "cause" not in error.facts:
                raise  # no worker was free
            reason = f"it cannot be proved within {PROOF_S:.0f} s that it fits; simplify the schema"
            raise refusal_error([Refusal("", reason)]) from error
    return parse_contract(document, previous)
