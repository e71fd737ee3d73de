"""Warnings and infos of an evaluation, each once, in the order in which they came up."""

from dataclasses import dataclass, field

NOTES_MAX = 20
_COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


@dataclass(slots=True)
class Notes:
    """What an evaluation says about its answer."""

    warnings: dict[str, None] = field(default_factory=dict)
    infos: dict[str, None] = field(default_factory=dict)

    def warn(self, text: str) -> None:
        """Add a warning: the answer may not be what the query means."""
        if len(self.warnings) < NOTES_MAX:
            self.warnings[f"PromQL warning: {text}"] = None

    def info(self, text: str) -> None:
        """Add an info: the query may be a mistake."""
        if len(self.infos) < NOTES_MAX:
            self.infos[f"PromQL info: {text}"] = None

    def check_counter(self, name: str) -> None:
        """Say so when a function of counters is used on a metric whose name is not a counter's."""
        if name and not name.endswith(_COUNTER_SUFFIXES):
            self.info(
                "metric might not be a counter, name does not end in _total/_sum/_count/_bucket:"
                f' "{name}"'
            )

    def check_quantile(self, quantile: float) -> None:
        """Warn when a quantile is not between 0 and 1."""
        if not 0 <= quantile <= 1:
            self.warn(f"quantile value should be between 0 and 1, got {go_number(quantile)}")


def go_number(value: float) -> str:
    """Return a number as Prometheus writes it."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    return text.removesuffix(".0")
