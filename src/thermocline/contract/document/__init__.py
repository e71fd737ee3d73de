"""Documents of a contract: validated, brought into canonical form, stored as typed columns."""
