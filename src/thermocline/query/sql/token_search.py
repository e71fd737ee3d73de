"""Searches for words in texts: `has_token`, `has_phrase`, and what LIKE tells of tokens.

In:   a condition of a query on a column of texts, and its needle
Out:  the hashes of tokens that every matching text has; the SQL functions as macros of the engine

- A token is a longest run of ASCII letters, digits and characters outside of ASCII. Every other
  ASCII character separates tokens. `has_token` and `has_phrase` ignore the case of ASCII letters;
  other letters match as they are. The texts are not normalised.
- A needle of LIKE may begin or end inside of a token of the text. Only tokens that separators, or
  the ends of the text, bound on both sides are asked for.
- The macros and `format.tokens` have one definition of a token: a test compares them.
"""

from thermocline.errors import Invalid
from thermocline.format.tokens import bounded_tokens, hash_token, like_fragments, tokens_of
from thermocline.query.sql.syntax import Tree

HAS_TOKEN, HAS_PHRASE, LIKE, CONTAINS, STARTS, ENDS = (
    "has_token",
    "has_phrase",
    "like",
    "contains",
    "starts",
    "ends",
)
SEARCHES = frozenset({HAS_TOKEN, HAS_PHRASE, LIKE, CONTAINS, STARTS, ENDS})
_FUNCTIONS = {
    "has_token": HAS_TOKEN,
    "has_phrase": HAS_PHRASE,
    "~~": LIKE,
    "contains": CONTAINS,
    "starts_with": STARTS,
    "prefix": STARTS,
    "^@": STARTS,
    "ends_with": ENDS,
    "suffix": ENDS,
}
NEEDLE_TOKENS_MAX = 64
"""How many tokens of one needle are asked for; the rest could only prune a little more."""

_TOKEN = "[0-9A-Za-z\\x{80}-\\x{10FFFF}]"  # noqa: S105 - a pattern of characters
_SEPARATOR = "[^0-9A-Za-z\\x{80}-\\x{10FFFF}]"

TOKEN_MACROS = (
    # One token as a pattern that ignores the case of ASCII letters. `(?i)` also matches the Kelvin
    # sign for `k`, which is another token.
    """create macro __thermocline_token_pattern(token) as array_to_string(list_transform(
        string_split(token, ''), lambda letter: case
            when regexp_full_match(letter, '[A-Za-z]')
                then '[' || lower(letter) || upper(letter) || ']'
            else letter end), '')""",
    f"""create macro __thermocline_phrase_pattern(phrase) as
        '(?:^|{_SEPARATOR})' || array_to_string(list_transform(
            regexp_extract_all(phrase, '{_TOKEN}+'),
            lambda token: __thermocline_token_pattern(token)), '{_SEPARATOR}+')
        || '(?:$|{_SEPARATOR})'""",
    f"""create macro has_token(text, token) as case
        when token is null or regexp_full_match(token, '{_TOKEN}+')
            then regexp_matches(text, __thermocline_phrase_pattern(token), 's')
        else error('has_token takes one token; write has_phrase for several') end""",
    f"""create macro has_phrase(text, phrase) as case
        when phrase is null or regexp_matches(phrase, '{_TOKEN}')
            then regexp_matches(text, __thermocline_phrase_pattern(phrase), 's')
        else error('has_phrase takes a text with at least one token') end""",
)
"""In the order in which they are created: each uses those before it."""


def split_search(part: Tree) -> tuple[Tree, str, list[Tree]] | None:
    """Return column, search and needle of a call that searches a column, else None."""
    if part["class"] != "FUNCTION":
        return None
    search = _FUNCTIONS.get(part["function_name"].lower())
    arguments = [argument["expression"] for argument in part["arguments"]]
    if search is None or len(arguments) != 2 or arguments[0]["class"] != "COLUMN_REF":
        return None
    return arguments[0], search, [arguments[1]]


def check_needle(search: str, needle: str) -> None:
    """Raise `Invalid` for a needle that the search cannot take."""
    tokens = tokens_of(needle)
    if search == HAS_TOKEN and tokens != [needle]:
        hint = "a token has letters and digits only; has_phrase takes several"
        raise Invalid("has_token takes exactly one token", hint=hint, got=needle[:80])
    if search == HAS_PHRASE and not tokens:
        raise Invalid(
            "has_phrase takes a text with at least one token",
            hint="write words of letters and digits",
            got=needle[:80],
        )


def hash_needle(search: str, needle: str) -> tuple[int, ...]:
    """Return the hashes of tokens that every text has that the search for the needle finds."""
    match search:
        case "has_token" | "has_phrase" | "=":
            tokens = tokens_of(needle)
        case "like":
            tokens = bounded_tokens(like_fragments(needle))
        case _:
            tokens = bounded_tokens([(needle, search == STARTS, search == ENDS)])
    hashes = [hash_token(token) for token in dict.fromkeys(tokens)]
    return tuple(one for one in hashes if one is not None)[:NEEDLE_TOKENS_MAX]
