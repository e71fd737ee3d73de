-- Keys that were deleted need no row for ever: no version below a type's floor is given again.
-- It is at least the last version of every deleted key that `gone` no longer has.

alter table type add column ver_floor bigint not null default 0;
