"""`histogram_quantile(q, histogram)`: an aggregate over lists of buckets, as macros of the engine.

In:   the column `histogram` of `rate` and `increase`, of any number of series and windows
Out:  SQL statements that define the macros

- Buckets of different bounds and scales are added as distributions: what each bucket holds below
  a value is added up, and the value at which the sum reaches the rank is the answer. For equal
  bounds this is what every system computes.
- Within a bucket of explicit bounds the values are taken as evenly spread; within one of an
  exponential histogram, as evenly spread over their logarithms.
- As in Prometheus: a first bucket without a lower bound begins at 0, or is its upper bound if that
  is negative; a rank in the last bucket without an upper bound gives its lower bound; a q below 0
  or above 1 gives minus or plus infinity; without observations the answer is null.

Names of lambda parameters differ between the macros, because a macro is a replacement of text.
"""

QUANTILE = "histogram_quantile"

MACROS = (
    # The share of a bucket's values that are at most x.
    """create macro __thermocline_share(bucket, x) as case
        when x >= bucket.upper then 1.0
        when x <= bucket.lower or isinf(bucket.upper) then 0.0
        when bucket.scale is null or bucket.lower * bucket.upper <= 0
            then (x - bucket.lower) / (bucket.upper - bucket.lower)
        else ln(x / bucket.lower) / ln(bucket.upper / bucket.lower) end""",
    # How many values of all buckets are at most x.
    """create macro __thermocline_held(buckets, x) as coalesce(list_sum(list_transform(
        buckets, lambda held: held.count * __thermocline_share(held, x))), 0.0)""",
    # The first edge with at least `rank` values below it, by bisection; past the last if none.
    """create macro __thermocline_search(buckets, edges, rank) as list_reduce(
        list_prepend(struct_pack(low := 0, high := len(edges) + 1),
            list_transform(range(48), lambda turn: struct_pack(low := turn, high := turn))),
        lambda span, turn: case
            when span.high - span.low <= 1 then span
            when __thermocline_held(buckets, edges[(span.low + span.high) // 2]) >= rank
                then struct_pack(low := span.low, high := (span.low + span.high) // 2)
            else struct_pack(low := (span.low + span.high) // 2, high := span.high) end).high""",
    """create macro __thermocline_between(low, high, part, is_even) as case
        when is_even or low * high <= 0 then low + (high - low) * part
        else low * pow(high / low, part) end""",
    """create macro __thermocline_inside(buckets, edge, rank) as list_transform(
        [struct_pack(below := __thermocline_held(buckets, edge.low),
            upto := __thermocline_held(buckets, edge.high))],
        lambda sums: __thermocline_between(edge.low, edge.high,
            (rank - sums.below) / (sums.upto - sums.below),
            len(list_filter(buckets, lambda even: even.scale is null
                and even.lower < edge.high and even.upper > edge.low)) > 0))[1]""",
    """create macro __thermocline_closed(buckets) as list_transform(
        list_filter(buckets, lambda filled: filled.count > 0),
        lambda open: struct_pack(
            lower := case when isinf(open.lower) then least(open.upper, 0.0) else open.lower end,
            upper := open.upper, "count" := open."count", "scale" := open."scale"))""",
    """create macro __thermocline_edges(buckets) as list_sort(list_distinct(list_filter(
        flatten(list_transform(buckets, lambda ends: [ends.lower, ends.upper])),
        lambda edge: not isinf(edge))))""",
    """create macro __thermocline_rank_value(buckets, edges, rank) as list_transform(
        [__thermocline_search(buckets, edges, rank)], lambda place: case
            when place > len(edges) then edges[-1]
            when place = 1 then edges[1]
            else list_transform([struct_pack(low := edges[place - 1], high := edges[place])],
                lambda edge: __thermocline_inside(buckets, edge, rank))[1] end)[1]""",
    """create macro __thermocline_quantile(q, found) as list_transform(
        [__thermocline_closed(found)], lambda buckets: list_transform(
            [struct_pack(rank := q * list_sum(list_transform(buckets, lambda one: one.count)),
                edges := __thermocline_edges(buckets))],
            lambda whole: case
                when q is null or buckets is null or len(buckets) = 0 then null
                when isnan(q) then q
                when q < 0 then '-inf'::double
                when q > 1 then 'inf'::double
                else __thermocline_rank_value(buckets, whole.edges, whole.rank) end)[1])[1]""",
    f"""create macro {QUANTILE}(q, histogram) as
        __thermocline_quantile(q::double, flatten(list(histogram)))""",
)
"""In the order in which they are created: each uses those before it."""
