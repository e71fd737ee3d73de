"""Only the references change, and that is proved before anything runs."""

import pytest

from thermocline.errors import Invalid
from thermocline.query.gate import admit
from thermocline.query.rewrite import template


def filled(parser, sql: str) -> str:
    """Return the text with R0, R1 ... for the relations, in the order of the references."""
    statement = admit(parser, sql)
    made = template(parser, statement)
    places = range(len(statement.references))
    names = {place: statement.references[place].written.upper() for place in places}
    return made.filled(names)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1", "select 1"),
        ("select * from p", 'select * from P AS "p"'),
        ("select * from p;", 'select * from P AS "p";'),
        ("select * from P as x", 'select * from P AS "x"'),
        ("select * from p x(a, b)", 'select * from P AS "x"("a", "b")'),
        ("select * from p as of version 3", 'select * from P AS "p"'),
        ("select * from p x as of version 3", 'select * from P AS "x"'),
        (
            "select 'é', p.a from p, q -- p\nwhere p.a = 'p' /* p */",
            "select 'é', p.a from P AS \"p\", Q AS \"q\" -- p\nwhere p.a = 'p' /* p */",
        ),
        (
            "with p as (select * from p) select * from p",
            'with p as (select * from P AS "p") select * from p',
        ),
        ("select ?, ? from p where a = ?", 'select $1, $2 from P AS "p" where a = $3'),
        ("select ? from p as of version ? where a = ?", 'select $1 from P AS "p" where a = $3'),
        ("select $b, $a from p", 'select $b, $a from P AS "p"'),
        (
            "select * from gaps('t', now()) where x",
            'select * from "__thermocline_call_0" AS "gaps" where x',
        ),
        (
            "select * from gaps('t') g(a), p",
            'select * from "__thermocline_call_0" AS "g"("a"), P AS "p"',
        ),
        ("select * from p tablesample 10%", "select * from p tablesample 10%"),
        ("describe p", "describe p"),
        ('select * from "a b" "x""y"', 'select * from A B AS "x""y"'),
        ("from (from p) select [x for x in [1]]", 'from (from P AS "p") select [x for x in [1]]'),
        (
            "(select a from p) union all (from p)",
            '(select a from P AS "p") union all (from P AS "p")',
        ),
    ],
)
def test_Q15_the_text_is_the_users_with_relations_in_the_places_of_tables(parser, sql, expected):
    assert filled(parser, sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "select * from p as of version 3 tablesample 10%",
        "select * from gaps('t') tablesample 10%",
        "select * from gaps('t') with ordinality",
        "describe p as of version 3",
    ],
)
def test_what_has_no_place_for_a_relation_is_refused_with_a_way_out(parser, sql):
    with pytest.raises(Invalid) as raised:
        filled(parser, sql)
    assert "subquery" in raised.value.hint or "syntax" in raised.value.message


def test_a_parameter_that_goes_with_its_reference_is_not_asked_for_again(parser):
    statement = admit(parser, "select ? from p as of version ? where a = ?")
    assert statement.parameters == {"1", "2", "3"}
    assert template(parser, statement).parameters == {"1", "3"}


def test_a_template_whose_meaning_is_another_is_refused(parser):
    statement = admit(parser, "select * from p as of version 3 where a = 1")
    # As if the parser had told a wrong place: the proof notices.
    statement.references[0].node["query_location_length"] += len(" where a = 1")
    with pytest.raises(Invalid):
        template(parser, statement)
