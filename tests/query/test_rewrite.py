"""Only the references change, and that is proved before anything runs."""

import duckdb
import pytest

from thermocline.errors import Invalid
from thermocline.query.sql.gate import admit
from thermocline.query.sql.rewrite import guess_proof_text, make_template


def filled(parser, sql: str) -> str:
    """Return the text with R0, R1 ... for the relations, in the order of the references."""
    statement = admit(parser, sql)
    made = make_template(parser, statement)
    places = range(len(statement.references))
    names = {place: statement.references[place].written.upper() for place in places}
    return made.fill(names)


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
    assert make_template(parser, statement).parameters == {"1", "3"}


def test_a_template_whose_meaning_is_another_is_refused(parser):
    statement = admit(parser, "select * from p as of version 3 where a = 1")
    # As if the parser returned a wrong position: the proof notices.
    statement.references[0].node["query_location_length"] += len(" where a = 1")
    with pytest.raises(Invalid):
        make_template(parser, statement)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from p",
        "SELECT a FROM P WHERE a = 'é from'",
        "select a from p x where x.a > 5 order by a",
        "select a from p as x group by a;",
        "select (select max(a) from p) as m /* 1 */",
        "select * from (select 1 as a) q join p using (a)",
        "with r as (select a from p limit 3) select * from r",
        "select $b, $a from p",
    ],
)
def test_a_right_guess_spares_the_engine_a_question(parser, sql):
    nobody = duckdb.connect(":memory:")
    nobody.close()
    statement = admit(parser, sql, guess_proof_text(sql, {"p"}))
    assert make_template(nobody, statement) == make_template(parser, admit(parser, sql))


@pytest.mark.parametrize(
    ("sql", "guess"),
    [
        ("select * from p window", None),
        ("select * from p selecting", None),
        ("select 'from p' from q", None),
        ("select a -- from p\n from q", None),
        ("select * from p(a)", None),
        ("select * from p x(a)", None),
        ("select * from p, q", None),
        ("with p as (select 1 as a) select * from p", None),
        ("select extract(year from p) from q p", None),
        ("select * from p as of version 3", None),
        ("select a from p where a = 1", 'select a from "__thermocline_slot_0" AS "p"'),
        ("select a from p", 'select b from "__thermocline_slot_0" AS "p"'),
        ("select a from p", "no sql"),
        ("select a from p", "drop table p"),
        ("select a from p", ""),
    ],
)
def test_a_wrong_guess_changes_nothing(parser, sql, guess):
    def outcome(guess):
        try:
            return make_template(parser, admit(parser, sql, guess))
        except Invalid as error:
            return str(error), error.facts

    assert outcome(guess or guess_proof_text(sql, {"p"})) == outcome(None)


def test_a_query_with_parameters_to_number_or_several_tables_is_not_guessed():
    assert guess_proof_text("select ? from p", {"p"}) is None
    assert guess_proof_text("select * from p join q", {"p", "q"}) is None
    assert guess_proof_text("select * from r", {"p", "q"}) is None
