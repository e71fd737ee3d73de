"""Erasure: a subject's rows are removed everywhere, and a certificate proves it."""
