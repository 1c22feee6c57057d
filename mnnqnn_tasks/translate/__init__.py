"""MNN subgraph to QNN graph: one small module per op family, and the emitters.

Importing this package is cheap; numpy is imported by the modules that compute.
"""

#: Part of every graph's identity: raise it whenever the same subgraph would give
#: different files.
TRANSLATOR_VERSION = "1"
