-- What one tenant has: its types, what has changed, and what the lake holds of it.
-- Run as the tenant's role, inside the tenant's schema; e_<type_id> is made when a type is registered.

create table store (
    store_id uuid not null default gen_random_uuid(),
    made_at  timestamptz not null default clock_timestamp()
);
insert into store default values;

create table type (
    type_id       int generated always as identity primary key,
    name          text collate "C" not null unique,
    table_name    text not null,
    lake_table_id text,
    created_at    timestamptz not null default clock_timestamp()
);

-- json, not jsonb: the order of the properties is the order of the columns.
create table type_version (
    type_id        int not null references type,
    schema_version int not null,
    document       json not null,
    columns        json not null,
    registered_at  timestamptz not null default clock_timestamp(),
    primary key (type_id, schema_version)
);

-- The typed columns of e_<type_id>; 'a' while old rows are being moved over, 'r' when all are.
create table type_column (
    type_id    int not null references type,
    column_id  int not null,
    name       text not null,
    pg_type    text not null,
    is_indexed boolean not null,
    state      "char" not null check (state in ('a', 'r')),
    primary key (type_id, column_id),
    unique (type_id, name)
);

-- The dirty set: every row here is a change that the lake does not have yet.
create table change (
    cid     bigint generated always as identity primary key,
    type_id int not null,
    id      text collate "C" not null,
    ver     bigint not null,
    op      "char" not null check (op in ('u', 'd')),
    xid     xid8 not null default pg_current_xact_id()
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index change_key on change (type_id, id);

-- Keys without a row whose last version still counts: deleted ('d'), or moved to the lake ('e').
create table gone (
    type_id int not null,
    id      text collate "C" not null,
    ver     bigint not null,
    why     "char" not null check (why in ('d', 'e')),
    primary key (type_id, id)
);

create table lake_head (
    type_id    int primary key references type,
    version    bigint not null,
    as_of      timestamptz,
    epoch      bigint not null default 0,
    cluster_id uuid not null
);
