"""Runs the example for Dagster with Dagster itself: python run_dagster.py EXAMPLE.

Prints the assets that were built, and whether the check passed.
"""

import runpy
import sys

from dagster import DagsterInstance

parts = runpy.run_path(sys.argv[1])
definitions = parts["definitions"]
job = definitions.resolve_implicit_global_asset_job_def()
done = job.execute_in_process(instance=DagsterInstance.ephemeral(), raise_on_error=False)
built = sorted(
    event.asset_key.to_user_string() for event in done.get_asset_materialization_events()
)
checks = [one.passed for one in done.get_asset_check_evaluations()]
print(*built, "passed" if checks == [True] else "stopped")
