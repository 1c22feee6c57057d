"""Double of the SDK's ``qnn-context-binary-generator``: links with the real libQnnHtp.

The graphs come out of the doubled model libraries, the options out of the files that a real
one would read; what it writes is a real context binary.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
from pathlib import Path

from double import main


def work(argv: list[str], mode: str) -> int:
    from mnnqnn_tasks.qnn import run
    from mnnqnn_tasks.qnn.options import TargetOptions
    from mnnqnn_tasks.toolchain.cppnet.sources import import_graph

    parser = argparse.ArgumentParser()
    for name in ("model", "backend", "binary_file", "config_file", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args(argv)
    config = json.loads(Path(given.config_file).read_text())["backend_extensions"]
    assert Path(config["shared_library_path"]).name == "libQnnHtpNetRunExtensions.so"
    told = json.loads(Path(config["config_file_path"]).read_text())
    (graph,), (device,) = told["graphs"], told["devices"]
    options = TargetOptions(
        soc_id=device["soc_id"] + (12 if mode == "other chip" else 0),
        dsp_arch="v79" if mode == "other chip" else device["dsp_arch"],
        vtcm_mb=graph["vtcm_mb"],
        optimization_level=int(graph["O"]),
        hvx_threads=graph["hvx_threads"],
        fp16_relaxed_precision=bool(graph["fp16_relaxed_precision"]),
        weight_sharing=told["context"]["weight_sharing_enabled"],
    )
    with tempfile.TemporaryDirectory() as folder:
        place, nets = Path(folder), []
        for library in given.model.split(","):
            assert library.startswith("./"), "the loader would search the system's folders"
            name = Path(library).stem.removeprefix("lib")
            with tarfile.open(fileobj=io.BytesIO(Path(library).read_bytes()[4:])) as tar:
                tar.extractall(place / name, filter="data")
            nets.append(place / f"{name}_net.json")
            import_graph(place / name, nets[-1], place / "blobs")
        assert [net.name.removesuffix("_net.json") for net in nets] == graph["graph_names"]
        if mode == "fewer graphs":
            nets.pop()
        out = Path(given.output_dir) / f"{given.binary_file}.bin"
        out.parent.mkdir(exist_ok=True)
        run.link(nets, place / "blobs", options, out, lib_dir=Path(given.backend).parent)
    if mode == "cut off":
        out.write_bytes(out.read_bytes()[:1000])
    return 0


main(work, "ERROR: missing option: --backend")
