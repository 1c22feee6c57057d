"""Which ops go to the NPU, where the subgraphs end, and the rewritten host model."""
