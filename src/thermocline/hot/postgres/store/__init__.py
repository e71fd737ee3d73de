"""Entities written: operations, statements and the transaction around them."""
