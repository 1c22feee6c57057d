"""doit tasks, commands and reporter: the only room that knows doit.

A ``dodo.py`` that exports every pipeline in ``pipelines/`` is::

    from mnnqnn_tasks.tasks import load

    globals().update(load())
"""

from mnnqnn_tasks.tasks.load import load

__all__ = ["load"]
