"""`AS OF` becomes `AT` where it is SQL, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import Invalid
from thermocline.query.sql.gate import admit
from thermocline.query.sql.syntax import rewrite_as_of


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("from p as of version 3", "from p AT (VERSION => 3)"),
        ("from p AS OF VERSION 3;", "from p AT (VERSION => 3);"),
        ("from p x As Of Version 3", "from p x AT (VERSION => 3)"),
        ("from p as x as of version 3", "from p as x AT (VERSION => 3)"),
        ("from p as of version 3 x", "from p AS x AT (VERSION => 3)"),
        ("from p as of version 3 as x", "from p AS x AT (VERSION => 3)"),
        ('from p as of version 3 "a b"', 'from p AS "a b" AT (VERSION => 3)'),
        ("from p as of version 3 as day", "from p AS day AT (VERSION => 3)"),
        ("from p as of version $1", "from p AT (VERSION => $1)"),
        ("from p as of version $name", "from p AT (VERSION => $name)"),
        ("from p as of version ?", "from p AT (VERSION => ?)"),
        ("from p as of version ? x", "from p AS x AT (VERSION => ?)"),
        ("from p as of timestamp '2024-06-01'", "from p AT (TIMESTAMP => '2024-06-01')"),
        ("from p as of timestamp $1", "from p AT (TIMESTAMP => $1)"),
        ("from p as of timestamp now()", "from p AT (TIMESTAMP => now())"),
        (
            "from p as of timestamp now() - interval 1 hour x where",
            "from p AS x AT (TIMESTAMP => now() - interval 1 hour) where",
        ),
        (
            "from p as of timestamp $1 - interval '1 day' + interval (2) minutes as x",
            "from p AS x AT (TIMESTAMP => $1 - interval '1 day' + interval (2) minutes)",
        ),
        (
            "from p as of timestamp (now() - interval 1 hour), q",
            "from p AT (TIMESTAMP => (now() - interval 1 hour)), q",
        ),
        (
            "from p as of timestamp date '2024-06-01'::timestamp x",
            "from p AS x AT (TIMESTAMP => date '2024-06-01'::timestamp)",
        ),
        (
            "from p as of timestamp current_timestamp /* now */ join q",
            "from p AT (TIMESTAMP => current_timestamp) /* now */ join q",
        ),
        (
            "from p as of version 1, q as of version 2 where 1",
            "from p AT (VERSION => 1), q AT (VERSION => 2) where 1",
        ),
        (
            "from p as of version 1 asof join q as of version 2 using (x)",
            "from p AT (VERSION => 1) asof join q AT (VERSION => 2) using (x)",
        ),
        (
            "select 'ä€😀' from p as/* x */of\nversion -- y\n 3 where a",
            "select 'ä€😀' from p AT (VERSION => 3) where a",
        ),
    ],
)
def test_the_clause_is_rewritten(sql, expected):
    assert rewrite_as_of(sql).text == expected


@pytest.mark.parametrize(
    "sql",
    [
        "select 'from p as of version 3'",
        "select 1 -- from p as of version 3",
        "select 1 /* from p as of version 3 */",
        "select $$from p as of version 3$$",
        "select e'it\\'s as of version 3'",
        'select "as of version 3" from p',
        'select a as "of" from version 3',
        'from p as "of" version 3',
        "select a as of, version from p",
        "select version as of from p",
        "from p as of",
        "from p as of version",
        "from p as of version -3",
        "from p as of version 'three'",
        "from p as of timestamp 3",
        "from p as of version $",
        "from p as of day '2024-06-01'",
        "from p as of version as of version",
    ],
)
def test_other_text_stays_as_it_is(sql):
    assert rewrite_as_of(sql).text == sql


@pytest.mark.parametrize(
    "words",
    ["asof join", "positional join", "semi join", "anti join", "natural join", "cross join"],
)
def test_a_word_that_begins_a_join_is_not_taken_for_an_alias(words):
    made = rewrite_as_of(f"select * from p as of version 3 {words} q").text
    assert made == f"select * from p AT (VERSION => 3) {words} q"


def test_an_alias_before_and_after_is_a_syntax_error(parser):
    with pytest.raises(Invalid, match="syntax error"):
        admit(parser, "select * from p x as of version 3 y")


QUIET = "'as of version 3'"
WORDS = """as of version timestamp 3 'x' $1 ? p /*c*/ ( "of" $$of$$ , from é ;"""


@given(st.lists(st.sampled_from([QUIET, *WORDS.split()]), max_size=14))
def test_every_byte_of_the_new_text_comes_from_somewhere_in_the_old(words):
    sql = " ".join(words)
    made = rewrite_as_of(sql)
    places = [made.original_position(place) for place in range(len(made.text.encode()))]
    assert places == sorted(places)
    assert all(0 <= place <= len(sql.encode()) for place in places)
    assert made.text.count(QUIET) == sql.count(QUIET)
