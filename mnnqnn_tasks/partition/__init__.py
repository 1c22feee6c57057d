"""Which ops go to the NPU, subgraph boundaries, the rewritten host model."""
