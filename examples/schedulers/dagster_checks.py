# ruff: noqa: INP001  # a file for `dagster dev -f`
"""Dagster checks that a day of an asset is complete, and stops what is downstream if it is not.

THERMOCLINE_TABLE=lake/prices dagster dev -f examples/schedulers/dagster_checks.py
"""

import json
import os
import subprocess
from datetime import UTC, date, datetime, timedelta

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    Definitions,
    Failure,
    asset,
    asset_check,
)

GATE = "thermocline gaps {table} --start {start} --end {end} --max-missing 1% --json"
EXIT_GATE = 10


def ask_gate(table: str, day: date) -> AssetCheckResult:
    """Return whether a day is complete; fail if that could not be found out."""
    words = GATE.format(table=table, start=day, end=day + timedelta(days=1)).split()
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode not in (0, EXIT_GATE):
        raise Failure(done.stderr)
    facts = json.loads(done.stdout)
    named = ("missing", "buckets", "ratio", "version")
    return AssetCheckResult(
        passed=facts["passed"],
        description=facts["reason"],
        metadata={name: facts[name] for name in named},
    )


def _yesterday() -> date:
    return datetime.now(UTC).date() - timedelta(days=1)


@asset
def prices(context: AssetExecutionContext) -> None:
    """Stand for the load of a day: here is what writes the table."""
    context.log.info("loaded")


@asset_check(asset=prices, blocking=True)
def prices_are_complete() -> AssetCheckResult:
    """Check the day before this run."""
    day = os.environ.get("DAY")
    table = os.environ["THERMOCLINE_TABLE"]
    return ask_gate(table, date.fromisoformat(day) if day else _yesterday())


@asset(deps=[prices])
def daily_means(context: AssetExecutionContext) -> None:
    """Stand for what needs a complete day."""
    context.log.info("built")


definitions = Definitions(assets=[prices, daily_means], asset_checks=[prices_are_complete])
