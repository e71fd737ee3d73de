"""Signatures of S3 requests (AWS Signature Version 4), checked.

In:   the parts of a request, and a way from an access key to its secret
Out:  the access key that signed it; `Refused` for everything else

- The signature is checked before anything that the request names is looked up.
- Comparisons take constant time. Only signatures in the `Authorization` header are accepted: a
  signed address could be passed on.
"""

import calendar
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

CLOCK_SKEW_S = 15 * 60
HEADER_LENGTH_MAX = 4_096
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=([A-Za-z0-9._-]{1,256})/([0-9]{8})/([a-z0-9-]{1,64})/s3/"
    r"aws4_request,\s*SignedHeaders=([a-z0-9;-]{1,1024}),\s*Signature=([0-9a-f]{64})"
)
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_EMPTY = hashlib.sha256(b"").hexdigest()


class Refused(Exception):
    """A request is not signed by a key that may do it; the client learns no more than that."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The parts of a request that a signature covers; `path` as it was sent, still quoted."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]


def check_signature(request: SignedRequest, secret_of: Callable[[str], str], now_s: float) -> str:
    """Return the access key that signed the request; `Refused` if no valid one did."""
    headers = _join_headers(request.headers)
    given = headers.get("authorization", "")
    found = _AUTHORIZATION.fullmatch(given) if len(given) <= HEADER_LENGTH_MAX else None
    if found is None:
        raise Refused("no signature")
    access_key, day, region, names, signature = found.groups()
    signed = names.split(";")
    when = headers.get("x-amz-date", "")
    if not _TIME.fullmatch(when) or not when.startswith(day):
        raise Refused("no time")
    _check_time(when, now_s)
    must_sign = {name for name in headers if name.startswith("x-amz-")} | {"host"}
    if not must_sign <= set(signed) or signed != sorted(set(signed)):
        raise Refused("a header is not signed")
    payload = headers.get("x-amz-content-sha256", _EMPTY)
    lines = [
        request.method,
        _canonical_path(request.path),
        _canonical_query(request.query),
        *(f"{name}:{headers.get(name, '')}" for name in signed),
        "",
        names,
        payload,
    ]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", when, scope, digest])
    key = f"AWS4{secret_of(access_key)}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = _sign(key, part)
    if not hmac.compare_digest(_sign(key, text).hex(), signature):
        raise Refused("another signature")
    return access_key


def _sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _check_time(when: str, now_s: float) -> None:
    try:
        at_s = calendar.timegm(time.strptime(when, "%Y%m%dT%H%M%SZ"))
    except ValueError as error:
        raise Refused("no time") from error
    if abs(at_s - now_s) > CLOCK_SKEW_S:
        raise Refused("another time")


def _join_headers(headers: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        value = " ".join(value.split())
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


def _canonical_path(path: str) -> str:
    return quote(unquote(path), safe="/-_.~")


def _canonical_query(query: str) -> str:
    pairs = []
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        pairs.append((quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
