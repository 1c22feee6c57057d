"""Stages on other machines, by Dask: what runs at its two ends, and no scheduling of our own."""
