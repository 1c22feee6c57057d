"""Double of MNN's ``compilefornpu SRC DST NPU_JSON``: this project's cut and translation.

Written as MNN's tool writes: ``qnn/<graph>/<graph>.cpp`` with a ``.raw`` per static tensor,
``npu_postreat.json`` in the working folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from double import HERE, main

USAGE = "Usage: ./compilefornpu src.mnn dst.mnn npu.json"
#: What a real one holds; the build is judged by it: QnnModel_composeGraphs, graph_name,
#: skips, KVCACHE_SIZE_LIMIT.


def work(argv: list[str], mode: str) -> int:
    source, target, config = (Path(a) for a in argv[:3])
    told = json.loads(config.read_text())
    assert told["type"] == "QNN" and target.parent.name == told["cache"] == "qnn"
    print("Convert for QNN, QualComn's NPU")
    made = _made(source, [Path(folder) for folder in told["testdir"]])
    shutil.copytree(made / "qnn", "qnn", dirs_exist_ok=True)
    postreat = json.loads((made / "npu_postreat.json").read_text())
    graphs = sorted(path.name for path in Path("qnn").iterdir() if path.is_dir())
    if mode in ("missing", "silent"):
        for graph in graphs[4:]:
            shutil.rmtree(Path("qnn") / graph)
    if mode == "missing":
        print("MNN_QNN: Don't support type 91, /layers.1/StridedSlice_output_0.")
    last = Path("qnn") / graphs[-1]
    if mode == "truncated":
        path = last / f"{last.name}.cpp"
        path.write_bytes(path.read_bytes()[:-200])
    if mode == "no raw":
        next(last.glob("*.raw")).unlink()
    if mode == "link":
        raw = next(last.glob("*.raw"))
        raw.unlink()
        raw.symlink_to(HERE)
    if mode == "other order":  # of the last two nodes
        path = last / f"{last.name}.cpp"
        *head, one, two, end, free = path.read_text().split("\n\n")
        path.write_text("\n\n".join([*head, two, one, end, free]))
    if mode == "other raw":
        raw = max(last.glob("*.raw"), key=lambda path: (path.stat().st_size, path.name))
        raw.write_bytes(bytes([raw.read_bytes()[0] ^ 1]) + raw.read_bytes()[1:])
    if mode == "outside":
        postreat["merge"]["qnn/../../graph9.bin"] = ["qnn/graph0"]
    if mode == "replaced":  # MNN is being built again
        with HERE.open("a") as text:
            text.write("# newer\n")
    if mode == "other host":
        del postreat["merge"][max(postreat["merge"])]
    Path("npu_postreat.json").write_text(json.dumps(postreat, indent=4))
    print("Write config to npu_postreat.json")
    return 0


def _made(model: Path, testdirs: list[Path]) -> Path:
    """The whole result for a model, kept beside the double: most tests want the same one."""
    from mnnqnn_tasks.files import sha256_bytes, sha256_file

    read = [model, Path(f"{model}.weight"), *(folder / "input.mnn" for folder in testdirs)]
    kept = HERE.parent / "made" / sha256_bytes("".join(map(sha256_file, read)).encode())
    if kept.is_dir():
        return kept
    from mnnqnn_tasks.mnn import samples
    from mnnqnn_tasks.mnn.index import index_model
    from mnnqnn_tasks.partition.write import partition_model
    from mnnqnn_tasks.translate.emit import emit
    from mnnqnn_tasks.translate.files import translate_files
    from mnnqnn_tasks.translate.registry import unsupported_reason

    inputs = {}
    for folder in testdirs:
        given = samples.read(folder / "input.mnn")
        assert samples.read(folder / "output.mnn")
        inputs[given["position_ids"].values.shape[-1]] = folder / "input.mnn"
    work = Path("native").absolute()
    plan = partition_model(
        model.parent, index_model(model.parent), inputs, (), work, unsupported_reason
    )
    for graph in plan.graphs():
        made = translate_files(
            work / "subgraphs" / f"{graph}.json", work / "sources.json", model.parent
        )
        emit(made.graph, made.blobs, work / "qnn" / graph, work / "blobs")
        (work / "qnn" / graph / f"{graph}_net.json").unlink()
    kept.parent.mkdir(exist_ok=True)
    shutil.move(work, kept)
    return kept


main(work, USAGE)
