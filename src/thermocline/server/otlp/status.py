"""Maps errors to the answers of both OTLP protocols: status, code, and when to try again.

In:   an error
Out:  an `OtlpStatus`

- For a client's error the message says what to fix. For an error of the node it says only the
  kind.
"""

from dataclasses import dataclass

from thermocline.error_table import find_answer, retry_after_s
from thermocline.errors import ThermoclineError


@dataclass(frozen=True, slots=True)
class OtlpStatus:
    """An error in the terms of both protocols; without `retry_after_s` it is final."""

    status: int
    code: int
    message: str
    retry_after_s: int | None = None


def otlp_status(error: BaseException) -> OtlpStatus:
    """Return the answer for an error."""
    row = find_answer(error)
    if not row.is_retried_by_otlp:
        return OtlpStatus(row.otlp_status, row.grpc_code, str(error))
    message = "the node cannot take this now"
    if isinstance(error, ThermoclineError):
        message = error.message
    return OtlpStatus(row.otlp_status, row.grpc_code, message, retry_after_s(error))
