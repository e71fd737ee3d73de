-- Every committed change, with what it left, until the type's retention ends: history and feed.
-- The feed needs cids without a cache: a later one is larger in every session. See change_feed.py.

create table revision (
    cid     bigint generated always as identity primary key,
    xid     xid8 not null default pg_current_xact_id(),
    type_id int not null,
    id      text collate "C" not null,
    ver     bigint not null,
    op      "char" not null check (op in ('c', 'u', 'd')),
    at      timestamptz not null,
    author  text,
    request text,
    image   jsonb
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index revision_key on revision (type_id, id);

-- Up to where a type's changes were removed; a consumer that has not read them starts again.
create table revision_floor (
    type_id int primary key references type,
    xid     xid8 not null,
    cid     bigint not null,
    at      timestamptz not null
);

alter table type add column history_kept_s double precision;
-- Another one after a restore: transactions have other numbers then.
alter table store add column feed_id uuid not null default gen_random_uuid();
