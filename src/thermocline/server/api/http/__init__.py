"""HTTP on both sides of a handler: requests read within limits, responses encoded, errors as problems."""
