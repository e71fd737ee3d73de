"""Iceberg: every table as a read-only Iceberg table over the same Parquet files"""
