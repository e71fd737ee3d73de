"""Care for a table: pins, vacuum, fsck, expunging and repair."""
