"""Parses and checks the head of an HTTP/1.1 request.

In:   the bytes up to and including the empty line
Out:  a `RequestHead`; `RequestRefused` with a status when two parsers could read the head
      differently

- A message has one length. A head with both a length and a transfer coding, with two lengths, with
  a coding other than `chunked`, or with a line that ends without a carriage return is refused: a
  proxy may see another end of the message (request smuggling).
- A header that must be unique (content type and coding, key, host) is refused when it comes twice.
- An offer to upgrade to another protocol is ignored. Trailers behind a body are ignored, too.
- Names are compared in lower case; values have no surrounding spaces.
"""

from dataclasses import dataclass

import httptools

HEAD_BYTES_MAX = 32 << 10
HEADERS_MAX = 100
END = b"\r\n\r\n"
_SINGLE = frozenset(
    {
        *(b"content-type", b"content-encoding", b"content-length", b"transfer-encoding"),
        *(b"authorization", b"host", b"expect", b"idempotency-key"),
    }
)


class RequestRefused(Exception):
    """A request is answered with an error; the connection may end after it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after_s: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.headers = headers


@dataclass(slots=True)
class RequestHead:
    """A request without its body."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    is_keep_alive: bool
    length: int | None
    is_chunked: bool
    expects_continue: bool
    parser: httptools.HttpRequestParser
    query: str = ""
    peer: str = ""

    def text(self, name: bytes) -> str | None:
        """Return a header's value as text, or None when it is absent; give the lower-case name."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class ParserCallbacks:
    """The callbacks of the parser, and the state they collect from one request."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.header_count = 0
        self.repeated_header: bytes | None = None
        self.body = bytearray()
        self.message_count = 0
        self.has_head = False
        self.is_complete = False

    def on_message_begin(self) -> None:
        """Count messages: another may follow a chunked message in the same bytes."""
        self.message_count += 1

    def on_url(self, url: bytes) -> None:
        """Append a part of the target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; values of a repeated name become one list, except for unique headers."""
        if self.has_head:
            return  # a trailer of a chunked body, or a header of the next message
        self.header_count += 1
        name, value = name.lower(), value.strip(b" \t")
        known = self.headers.get(name)
        if known is not None:
            if name in _SINGLE:
                self.repeated_header = name
            value = known + b", " + value
        self.headers[name] = value

    def on_headers_complete(self) -> None:
        """Mark the end of the head: headers that follow are not the request's."""
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        """Append a part of a chunked body."""
        if not self.is_complete:
            self.body += body

    def on_message_complete(self) -> None:
        """Mark the end of the first message."""
        self.is_complete = True


def find_head_end(data: bytes | bytearray) -> int:
    """Return the offset where the head ends, or -1 when its end has not arrived.

    `RequestRefused` when the head is too long, or has a line that ends without a carriage return.
    """
    end = data.find(END, 0, HEAD_BYTES_MAX)
    seen = data[: end + len(END)] if end >= 0 else data[:HEAD_BYTES_MAX]
    if seen.count(b"\n") != seen.count(b"\r\n") or seen.count(b"\r") - seen.endswith(
        b"\r"
    ) > seen.count(b"\r\n"):
        raise RequestRefused(400, "a line of the head ends with half of a line end")
    if end >= 0:
        return end + len(END)
    if len(data) >= HEAD_BYTES_MAX:
        raise RequestRefused(431, "the head of the request is longer than the limit")
    return -1


def parse_head(data: bytes) -> tuple[RequestHead, ParserCallbacks]:
    """Return the head in these bytes, which end with its empty line, and the body's callbacks."""
    parser, reading = _parse(data)
    if reading.header_count > HEADERS_MAX:
        raise RequestRefused(431, "the request has more headers than the limit")
    if reading.repeated_header is not None:
        raise RequestRefused(
            400, f"the header {reading.repeated_header.decode('latin-1')} appears twice"
        )
    headers = reading.headers
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise RequestRefused(505, "the node supports HTTP/1.0 and HTTP/1.1 only")
    if version == "1.1" and b"host" not in headers:
        raise RequestRefused(400, "the request has no Host header")
    length, is_chunked = _body_length(headers, version)
    head = RequestHead(
        method=parser.get_method().decode("ascii"),
        path=_path(reading.target),
        headers=headers,
        is_keep_alive=parser.should_keep_alive(),
        length=length,
        is_chunked=is_chunked,
        expects_continue=_expects_continue(headers, version),
        parser=parser,
        query=reading.target.partition(b"?")[2].decode("latin-1"),
    )
    return head, reading


def _parse(data: bytes) -> tuple[httptools.HttpRequestParser, ParserCallbacks]:
    reading = ParserCallbacks()
    parser = httptools.HttpRequestParser(reading)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade as error:
        plain = _without_upgrade(data)
        if parser.get_method() == b"CONNECT" or plain == data:
            raise RequestRefused(400, "the node supports no tunnels") from error
        return _parse(plain)
    except httptools.HttpParserError as error:
        raise RequestRefused(400, "the head of the request is malformed") from error
    return parser, reading


def _without_upgrade(data: bytes) -> bytes:
    """Return a head without its `Upgrade` header, which a server may ignore."""
    lines = data.split(b"\r\n")
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise RequestRefused(400, "a header spans several lines")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(b"upgrade:"))


def _body_length(headers: dict[bytes, bytes], version: str) -> tuple[int | None, bool]:
    """Return a body's length, and whether it is chunked; a request with neither has no body."""
    length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise RequestRefused(400, "the request has both a length and a transfer coding")
        if coding.lower() != b"chunked" or version == "1.0":
            raise RequestRefused(400, "the only supported transfer coding is chunked")
        return None, True
    if length is None:
        return 0, False
    if not length.isdigit() or len(length) > 18:
        raise RequestRefused(400, "the length of the body is not a number")
    return int(length), False


def _expects_continue(headers: dict[bytes, bytes], version: str) -> bool:
    expected = headers.get(b"expect")
    if expected is None or version == "1.0":
        return False
    if expected.lower() != b"100-continue":
        raise RequestRefused(417, "the only supported expectation is 100-continue")
    return True


def _path(target: bytes) -> str:
    if target.startswith(b"/"):
        return target.partition(b"?")[0].decode("latin-1")
    try:
        path = httptools.parse_url(target).path or b"/"
    except httptools.HttpParserInvalidURLError as error:
        raise RequestRefused(400, "the target of the request is malformed") from error
    return path.decode("latin-1")
