"""MNN subgraph to QNN graph IR; one module per op family."""
