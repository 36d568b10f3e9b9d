"""Writes DataFrames and streams as jobs: tasks check and stage the rows, and the driver commits them."""
