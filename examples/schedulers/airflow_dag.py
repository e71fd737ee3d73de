# ruff: noqa: INP001  # a file for Airflow's folder of DAGs
"""Airflow waits until the day before is complete in a table, then builds what needs it.

Copy examples/schedulers/airflow_dag.py into the folder of DAGs, and set THERMOCLINE_TABLE for the
workers. A sensor asks again while buckets are missing (exit code 10); every other error fails the
task at once.
"""

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.sensors.bash import BashSensor
from airflow.sdk import DAG

GATE = (
    "thermocline gaps $THERMOCLINE_TABLE --start {{ macros.ds_add(ds, -1) }} --end {{ ds }}"
    " --max-missing 1%"
)
DAY = "thermocline coverage $THERMOCLINE_TABLE --start {{ macros.ds_add(ds, -1) }} --end {{ ds }}"

with DAG(
    dag_id="prices_daily",
    schedule="@daily",
    start_date=datetime(2024, 6, 1, tzinfo=UTC),
    catchup=False,
    default_args={"env": dict(os.environ)},
) as dag:
    is_complete = BashSensor(
        task_id="is_complete",
        bash_command=GATE,
        retry_exit_code=10,
        mode="reschedule",
        poke_interval=timedelta(minutes=5),
        timeout=timedelta(hours=6),
    )
    build = BashOperator(task_id="build", bash_command=DAY)
    is_complete >> build
