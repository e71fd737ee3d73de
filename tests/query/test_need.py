"""Which columns a query can touch: naming too few would be a wrong answer or an error."""

import duckdb
import pytest

from thermocline.query.sql.gate import admit

ANY = None


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("select close from prices where ts > now()", {"close", "ts"}),
        ('select "Close" from prices', {"close"}),
        ("select p.close from prices p order by p.ts", {"p", "close", "ts"}),
        ("select count(*) from prices", set()),
        ("select 1 from prices join volumes using (symbol)", {"symbol"}),
        ("select (select max(a) from volumes v where v.k = p.k) from prices p", "a k p v"),
        ("with x as (select a from prices) select b from x", {"a", "b"}),
        ("select sum(a) over (partition by b order by c) from prices qualify d > 1", "a b c d"),
        ("select a.b.c from prices", {"a", "b", "c"}),
        ("select a from prices union all select b from volumes", {"a", "b"}),
        ("select list_transform(a, lambda x: x + b) from prices", {"a", "b", "x"}),
        ("select * from prices", ANY),
        ("from prices", ANY),
        ("select a from (from prices)", ANY),
        ("select p.* from prices p", ANY),
        ("select columns('c.*') from prices", ANY),
        ("select prices from prices", ANY),
        ("select p from prices as p", ANY),
        ("select count(p) from prices p", ANY),
        ("select a from prices natural join volumes", ANY),
        ("select a from prices positional join volumes", ANY),
        ("select a from prices as p(a, b)", ANY),
        ("select #1 from prices", ANY),
        ("select a from prices order by all", ANY),
    ],
)
def test_a_query_needs_the_columns_it_mentions_or_any(sql, names):
    expected = set(names.split()) if isinstance(names, str) else names
    found = admit(duckdb.connect(), sql).columns
    assert found == (None if expected is None else frozenset(expected))
