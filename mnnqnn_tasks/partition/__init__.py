"""Which ops go to the NPU, where the subgraphs end, and the rewritten host model.

The stage is `write.partition_model`; its passes in order are in `partition.partition`:
needed ops, facts of tensors, folding, the cut, ops that the CPU has to keep, borders.

The cut is that of MNN's ``compilefornpu.cpp``.  It differs on purpose where that tool
gives a wrong or useless result:

* An op without translation, or that QNN refuses, or whose shape is not known, becomes a
  piece on the CPU; MNN leaves its graph out and names it all the same.
* Folded values that differ between the shapes never stand in the host model; their ops
  are kept there.  MNN's host model has the values of the first shape.
* Pieces that the runtime could not serve right stay on the CPU (`checks`).
* Shape content is cut out also where nothing else breaks; MNN's whole-module case bakes
  the sample's values in.  A whole module has its inputs and outputs in ascending order,
  and no input that it does not read.
* An output that nothing reads is none, unneeded constants are not in the host model, and
  ``outputName`` names only outputs that are there.
* ``extraTensorDescribe`` is kept for tensors of the host model; MNN looks them up by a
  name that its exporter does not write, and so drops them all.
"""
