-- Writes that were committed under an idempotency key, with their results: a retry gets them again.

create table write_request (
    request     text collate "C" primary key,
    fingerprint bytea not null,
    results     json,
    made_at     timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index write_request_age on write_request (made_at);
