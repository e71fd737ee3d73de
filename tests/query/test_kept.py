"""A cached text is reused only over the same states and complete files."""

import os

import pytest

from fixtures.lake import rows
from thermocline import Session, TimeSeriesTable
from thermocline.errors import Corruption

ASKED = "select sum(close) as total from prices where ts >= '2024-06-01'"


@pytest.fixture
def prices(tmp_path):
    table = TimeSeriesTable.create(tmp_path / "prices", time_column="ts", bucket="1h")
    table.append(rows([1, 2]))
    return table


@pytest.fixture
def ask(prices):
    with Session() as session:
        session.register_tstable("prices", prices.root())
        yield lambda sql=ASKED: session.sql(sql).column(0).to_pylist()[0]


def only_file(table):
    (segment,) = table.cold.state().segments
    return f"{table.root()}/{segment.path}"


def test_a_repeated_query_sees_every_commit_in_between(prices, ask):
    assert [ask(), ask()] == [3.0, 3.0]
    prices.append(rows([4]))
    assert [ask(), ask()] == [7.0, 7.0]
    prices.delete("close = 4")
    assert [ask(), ask()] == [3.0, 3.0]
    prices.rename_column("close", "price")
    prices.add_column("close", prices.schema().field("price").type)
    assert [ask(), ask()] == [None, None]
    prices.restore(2)
    assert [ask(), ask()] == [3.0, 3.0]


def test_Q01_a_file_that_went_missing_after_the_first_query_is_named(prices, ask):
    assert [ask(), ask()] == [3.0, 3.0]
    os.unlink(only_file(prices))
    with pytest.raises(Corruption, match="live file is missing"):
        ask()


def test_T21_a_file_that_was_cut_after_the_first_query_is_named(prices, ask):
    assert [ask(), ask()] == [3.0, 3.0]
    os.truncate(only_file(prices), 100)
    with pytest.raises(Corruption, match="another size"):
        ask()


def test_another_table_under_the_same_name_is_another_answer(prices, tmp_path):
    other = TimeSeriesTable.create(tmp_path / "other", time_column="ts", bucket="1h")
    other.append(rows([10]))
    with Session() as session:
        for table, total in ((prices, 3.0), (other, 10.0), (prices, 3.0)):
            session.register_tstable("prices", table.root())
            for _ in range(2):
                assert session.sql(ASKED).column(0).to_pylist() == [total]


def test_a_self_join_at_two_versions_keeps_them_apart(prices, ask):
    prices.append(rows([4]))
    query = (
        "select (select sum(close) from prices) - (select sum(close) from prices as of version 2)"
    )
    assert [ask(query), ask(query)] == [4.0, 4.0]
    prices.append(rows([5]))
    assert [ask(query), ask(query)] == [9.0, 9.0]
