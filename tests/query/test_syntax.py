"""Two trees are the same when nothing but positions and the named nodes differs."""

import copy

import pytest

from thermocline.errors import Invalid
from thermocline.query.sql.syntax import (
    RewrittenText,
    is_same_tree,
    parse,
    run_parser,
    run_parser_pair,
    tree_nodes,
    tree_of,
)

SQL = "select a, count(*) from p where b = 5 and c in ('x', 'y') group by all order by 1 limit 3"


def tree(parser, sql: str):
    return parse(parser, RewrittenText(sql))["node"]


def test_a_text_with_other_white_space_is_the_same_tree(parser):
    assert is_same_tree(tree(parser, SQL), tree(parser, "  " + SQL.replace(" ", "\n /* p */ ")), {})


def test_any_other_value_anywhere_is_another_tree(parser):
    old = tree(parser, SQL)
    changed = 0
    for place, part in enumerate(tree_nodes(old)):
        for key, value in part.items():
            if key.startswith("query_location") or isinstance(value, dict | list):
                continue
            new = copy.deepcopy(old)
            tree_nodes(new)[place][key] = 0 if isinstance(value, bool) else f"not {value}"
            assert not is_same_tree(old, new, {}), (key, value)
            changed += 1
    assert changed > 50


def test_a_part_too_many_or_too_few_is_another_tree(parser):
    old = tree(parser, SQL)
    for place, part in enumerate(tree_nodes(old)):
        for key, value in part.items():
            new = copy.deepcopy(old)
            if isinstance(value, list):
                tree_nodes(new)[place][key].append(None)
                assert not is_same_tree(old, new, {})
                assert not is_same_tree(new, old, {})
            new = copy.deepcopy(old)
            del tree_nodes(new)[place][key]
            assert not is_same_tree(old, new, {})
            assert not is_same_tree(new, old, {})


def test_a_node_to_be_replaced_must_be_replaced_by_just_that(parser):
    old = tree(parser, "select * from p, (select 1)")
    (node,) = [part for part in tree_nodes(old) if part.get("table_name") == "p"]
    wanted = {**node, "table_name": "q", "qualified_name": {"path": ["q"]}}
    assert is_same_tree(old, tree(parser, "select * from q, (select 1)"), {id(node): wanted})
    assert not is_same_tree(old, tree(parser, "select * from p, (select 1)"), {id(node): wanted})
    assert not is_same_tree(old, tree(parser, "select * from r, (select 1)"), {id(node): wanted})
    assert not is_same_tree(old, tree(parser, "select * from q, (select 2)"), {id(node): wanted})


@pytest.mark.parametrize("other", ["select * from q", "no sql at all", "", "select '\ud800'"])
def test_a_text_is_read_the_same_whatever_is_read_beside_it(parser, other):
    alone = run_parser(parser, SQL)
    together, beside = run_parser_pair(parser, SQL, other)
    assert together == alone
    assert beside is None or beside == run_parser(parser, other)


def test_what_is_wrong_with_a_text_is_said_when_it_is_looked_into(parser):
    reading, _ = run_parser_pair(parser, "select from where", SQL)
    with pytest.raises(Invalid, match="syntax error"):
        tree_of(reading, RewrittenText(reading.text))
