"""Contracts and documents that the tests of entities share."""

ORDER = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "x-hot": True},
        "quantity": {"type": "integer", "x-hot": True},
        "price": {"type": "string", "x-type": "decimal(18,2)", "x-hot": True},
        "placed_at": {"type": "string", "format": "date-time", "x-hot": True},
        "note": {"type": ["string", "null"]},
        "weight": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
        },
    },
    "required": ["status"],
}


def order(status="open", **more):
    return {"status": status, **more}


def changes(store):
    """Return the notes of a store's writes: key, version, what was done, change id."""
    query = "select id, ver, op::text, cid from change order by cid"
    return store.pool.run(store.tenant, lambda c: c.execute(query).fetchall())
