#!/bin/sh
# Builds the models of a day with dbt, only if the day is complete:
#   examples/schedulers/dbt/run.sh LAKE START END
# Exit code 10: buckets are missing, and nothing was built. Every other code than 0 is an error.
set -eu
lake=$1 start=$2 end=$3
cd "$(dirname "$0")"
work=${WORK:-.}
export PRICES_FILE="$work/prices.parquet"
thermocline gaps "$lake/prices" --start "$start" --end "$end" --max-missing 1% >&2
thermocline sql 'select * from prices where ts >= $start and ts < $end' --tables "$lake" \
    --param "start=$start" --param "end=$end" --output "$PRICES_FILE"
dbt build --profiles-dir . --target-path "$work/target" --log-path "$work/logs"
