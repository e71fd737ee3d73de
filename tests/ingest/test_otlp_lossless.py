"""Every accepted item comes back from its row, field for field; both encodings give equal rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.otlp_rebuilt import forgiving, items, normal, rebuilt
from ingest.otlp_requests import NOW_NS, REQUESTS, batches_of, messages, otlp_json
from thermocline.ingest.otlp.json import decode_json
from thermocline.ingest.otlp.protobuf import decode_protobuf, warm_up
from thermocline.ingest.otlp.tables import TABLES

SIGNALS = list(REQUESTS)


@pytest.fixture(autouse=True, scope="module")
def _warm():
    warm_up()


def decoded(signal, request):
    return decode_protobuf(signal, request.SerializeToString(), arrived_ns=NOW_NS)


def rows(outcome):
    return [row for name in sorted(outcome.batches) for row in outcome.batches[name].to_pylist()]


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=80)
@given(data=st.data())
def test_every_accepted_item_comes_back_field_for_field(signal, data):
    request = data.draw(messages(REQUESTS[signal]))
    taken = []
    refused = 0
    for item in items(request):
        outcome = decoded(signal, item)
        assert outcome.accepted + outcome.rejected == 1
        refused += outcome.rejected
        for row in rows(outcome):
            assert normal(rebuilt(signal, row)) == normal(forgiving(item))
            taken.append(row)
    whole = decoded(signal, request)
    assert (whole.accepted, whole.rejected) == (len(taken), refused)
    assert sorted(map(repr, rows(whole))) == sorted(map(repr, taken))


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=60)
@given(data=st.data())
def test_the_same_request_in_json_gives_equal_batches(signal, data):
    request = data.draw(messages(REQUESTS[signal]))
    in_json = decode_json(signal, otlp_json(request), arrived_ns=NOW_NS)
    assert batches_of(in_json) == batches_of(decoded(signal, request))


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=30)
@given(data=st.data())
def test_every_batch_has_the_columns_of_its_table_and_valid_values(signal, data):
    outcome = decoded(signal, data.draw(messages(REQUESTS[signal])))
    for name, batch in outcome.batches.items():
        assert batch.schema.equals(TABLES[name].schema)
        batch.validate(full=True)
        assert batch.column("ts").null_count == 0
        assert [t.value // 1 for t in batch.column("ts")] == [
            t // 1_000 for t in batch.column("ts_ns").to_pylist()
        ]
