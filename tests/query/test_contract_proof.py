"""Contracts judged in a worker: the outcome of this process, and an end for proofs without one."""

import pytest

from fixtures.timing import wait_until
from thermocline.contract.evolve.compatible import evolve_contract
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Invalid
from thermocline.query.worker import contract_proof
from thermocline.query.worker.contract_proof import evolve_in_worker
from thermocline.query.worker.pool import QueryPool

SIMPLE = {"type": "object", "properties": {"a": {"type": "integer"}}}
NARROWER = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 4}}}
WIDER = {"type": "object", "properties": {**SIMPLE["properties"], "b": {"type": "string"}}}


def entangled(shift, size=14):
    """Return a contract whose successor can be judged only by trying every combination."""
    names = [f"p{n}" for n in range(size)]
    clauses = [
        {
            "anyOf": [
                {"properties": {names[(n * k + shift) % size]: {"minimum": k}}, "required": []}
                for k in range(1, 6)
            ]
        }
        for n in range(size)
    ]
    shape = {name: {"type": "integer"} for name in names}
    inner = {"type": "object", "properties": shape, "allOf": clauses}
    return {"type": "object", "properties": {"x": inner}}


@pytest.fixture(scope="module")
def pool():
    """One worker."""
    with QueryPool(workers=1, wait_s=60.0) as opened:
        yield opened


def judge_here(document, previous):
    """Return the contract that this process makes of a document."""
    return evolve_contract(document, previous) if previous else parse_contract(document)


def test_a_worker_judges_as_this_process_does(pool):
    first = evolve_in_worker(pool, "", SIMPLE, None)
    assert first == parse_contract(SIMPLE)
    assert evolve_in_worker(pool, "", WIDER, first) == evolve_contract(WIDER, first)
    for refused, previous in ((NARROWER, first), ({"type": "array"}, None), ([], None)):
        with pytest.raises(Invalid) as remote:
            evolve_in_worker(pool, "", refused, previous)
        with pytest.raises(Invalid) as local:
            judge_here(refused, previous)
        assert remote.value.facts["problems"] == local.value.facts["problems"]
    assert pool.queue.of_tenant("") == []


def test_A12_a_contract_that_is_not_proved_in_time_is_refused(pool, monkeypatch):
    monkeypatch.setattr(contract_proof, "PROOF_S", 2.0)
    previous = parse_contract(entangled(0))
    with pytest.raises(Invalid) as refused:
        evolve_in_worker(pool, "", entangled(1), previous)
    assert "prove" in refused.value.facts["problems"][0]["reason"]
    wait_until(lambda: not pool.queue.of_tenant(""))
    assert pool.sql("select 1 as n").to_pylist() == [{"n": 1}]
