"""Exports every pipeline in ``pipelines/``: ``doit export_qnn``."""

from mnnqnn_tasks.tasks import load

globals().update(load())
