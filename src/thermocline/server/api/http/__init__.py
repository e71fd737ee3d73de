"""HTTP around a handler: requests read within limits, answers encoded, errors as problems."""
