"""A double of a compiler of ONNX models: links the net.json that lies beside every model.

Options: --model FILE and --graph NAME, each once per graph; --soc ID; --out FILE.  The mode
``wrong`` names the graphs as the models were called before.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import double

from mnnqnn_tasks.genie.onnx_name import graph_name
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.qnn.options import TargetOptions


def work(argv: list[str], mode: str) -> int:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--graph"):
        parser.add_argument(name, action="append", required=True)
    for name in ("--soc", "--out", "--nets"):
        parser.add_argument(name, required=True)
    given = parser.parse_args(argv)
    options = TargetOptions(int(given.soc), "v75", optimization_level=1, weight_sharing=False)
    with tempfile.TemporaryDirectory() as folder:
        nets = []
        for model, name in zip(given.model, given.graph, strict=True):
            if graph_name(Path(model)) != name:
                print(f"{model} is not called {name}")
                return 1
            net = netjson.load(Path(given.nets, f"{Path(model).stem}_net.json"))
            net = replace(net, name=net.name if mode == "wrong" else name)
            nets.append(Path(folder, f"{net.name}_net.json"))
            netjson.save(net, nets[-1])
        out = Path(folder, "out.bin")
        run.link(nets, Path(given.nets, "blobs"), options, out)
        shutil.copyfile(out, given.out)
    return 0


if __name__ == "__main__":
    sys.argv[0] = __file__
    double.main(work, "genie-compiler --model FILE --graph NAME --soc ID --out FILE --nets FOLDER")
