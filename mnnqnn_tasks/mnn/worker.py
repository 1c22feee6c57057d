"""The process that runs MNN: ``python -m mnnqnn_tasks.mnn.worker``.

It answers requests, one JSON line each, on standard input with one JSON line each on
standard output.  Arrays travel as ``.npy`` files in a folder that the request names.
What MNN prints goes to standard error.  MNN lives here and nowhere else, because a bad
model can end its process.

Request::

    {"model": path, "weight": path or null, "precision": "high", "threads": 2,
     "folder": path, "inputs": [{"name", "file", "format"}], "outputs": [name]}

Answer: ``{"outputs": [{"name", "file", "format"}]}``, or ``{"error": {"kind", "what",
"why", "todo"}}`` with the name of an error class.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

#: The oldest MNN whose behaviour is known here.
MIN_VERSION = (3, 6, 1)


class _Refused(Exception):
    """An answer that is an error: the name of its class and its parts."""

    def __init__(self, kind: str, what: str, why: str, todo: str) -> None:
        super().__init__(what)
        self.answer = {"error": {"kind": kind, "what": what, "why": why, "todo": todo}}


def _parse_version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("."):
        digits = "".join(c for c in part if c.isdigit())
        numbers.append(int(digits) if digits else 0)
    return tuple(numbers)


def _import_mnn() -> Any:
    """The MNN package.

    Its output and its threads are the only things that importing it touches: the parts
    of the wheel that report usage are command line tools, which are never imported.
    """
    todo = "pip install 'MNN>=3.6.1'"
    try:
        import MNN
        import MNN.expr
        import MNN.nn
    except ImportError as error:
        raise _Refused("ToolMissing", "the MNN wheel cannot be used", str(error), todo) from error
    version = str(MNN.version())
    if _parse_version(version) < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        why = f"version {version} is installed, {wanted} or newer is needed"
        raise _Refused("ToolMissing", "the MNN wheel is too old", why, todo)
    return MNN


def _name_for_mnn(path: str, opened: list[BinaryIO]) -> str:
    """A name of the file at ``path`` that MNN's bindings take: they insist on UTF-8.

    Another path goes by the number of the open file, which holds as long as it is open.

    Args:
        opened: takes the file if one was opened.
    """
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        try:
            stream = open(path, "rb")  # noqa: SIM115  MNN reads it later
        except OSError as error:
            raise _Refused(
                "ModelFileError",
                "cannot read a file of the model",
                error.strerror or str(error),
                "check the path of the model folder in the pipeline",
            ) from error
        opened.append(stream)
        return f"/proc/self/fd/{stream.fileno()}"
    return path


class _Runner:
    """Runs modules; the last one stays loaded."""

    def __init__(self) -> None:
        self.mnn = _import_mnn()
        self.key: object = None
        self.module: Any = None

    def load(self, request: dict[str, Any], inputs: list[str], outputs: list[str]) -> Any:
        fields = ("model", "weight", "precision", "threads")
        key = (*(request[name] for name in fields), tuple(inputs), tuple(outputs))
        if key == self.key:
            return self.module
        self.key, self.module = None, None
        gc.collect()
        config = {
            "backend": "CPU",
            "numThread": request["threads"],
            "precision": request["precision"],
            "memory": "normal",
        }
        runtime = self.mnn.nn.create_runtime_manager((config,))
        opened: list[BinaryIO] = []
        if request["weight"] is not None:
            runtime.set_external(_name_for_mnn(request["weight"], opened))
        model = _name_for_mnn(request["model"], opened)
        try:
            module = self.mnn.nn.load_module_from_file(
                model, inputs, outputs, runtime_manager=runtime
            )
        except Exception as error:  # MNN's bindings raise whatever they like
            raise _Refused(
                "ModelFileError",
                "MNN cannot load the model",
                f"{error.__cause__ or error}; from {', '.join(inputs)} to {', '.join(outputs[:4])}",
                "check that these tensors of the model depend on each other",
            ) from error
        # The runtime must outlive the module, and the names of open files, both.
        self.key, self.module = key, (module, runtime, opened)
        return self.module

    def variable(self, path: Path, layout: str) -> Any:
        expr = self.mnn.expr
        values = np.load(path, allow_pickle=False)
        kinds = {
            "float32": expr.float,
            "int32": expr.int,
            "int64": expr.int64,
            "uint8": expr.uint8,
            "int8": expr.int8,
        }
        kind = kinds[values.dtype.name]
        stored = {"NCHW": expr.NCHW, "NHWC": expr.NHWC, "NC4HW4": expr.NCHW}[layout]
        flat = np.ascontiguousarray(values)
        variable = expr.const(flat, list(values.shape), stored, kind)
        return expr.convert(variable, expr.NC4HW4) if layout == "NC4HW4" else variable

    def save(self, variable: Any, name: str, path: Path) -> str:
        """Write one output, NC4HW4 in NCHW order; gives its layout."""
        expr = self.mnn.expr
        try:
            layout = {expr.NCHW: "NCHW", expr.NHWC: "NHWC", expr.NC4HW4: "NC4HW4"}[
                variable.data_format
            ]
            shape = variable.shape
            plain = expr.convert(variable, expr.NCHW) if layout == "NC4HW4" else variable
            # A view of MNN's memory, which ends with the variable: written at once.
            values = plain.read()
        except Exception as error:  # MNN's bindings raise whatever they like
            raise _Refused(
                "ModelFileError",
                f"MNN could not compute {name}",
                str(error) or type(error).__name__,
                "check the shapes of the inputs",
            ) from error
        if values is None:
            raise _Refused(
                "ModelFileError",
                f"MNN could not compute {name}",
                "it gave no values",
                "check the shapes of the inputs",
            )
        try:
            np.save(path, np.asarray(values).reshape(shape), allow_pickle=False)
        except OSError as error:
            raise _Refused(
                "DiskError",
                f"cannot write {name}",
                str(error),
                "free space in the folder for temporary files (TMPDIR), then run again",
            ) from error
        return layout

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = Path(request["folder"])
        inputs = [item["name"] for item in request["inputs"]]
        if not inputs or not request["outputs"]:  # MNN would take other ones, or crash
            raise _Refused(
                "ModelFileError",
                "MNN could not run the model",
                "no inputs or no outputs were named",
                "name at least one of each",
            )
        module, *_ = self.load(request, inputs, request["outputs"])
        variables = [
            self.variable(folder / item["file"], item["format"]) for item in request["inputs"]
        ]
        try:
            results = module.forward(variables)
        except Exception as error:  # as above
            raise _Refused(
                "ModelFileError",
                "MNN could not run the model",
                str(error) or type(error).__name__,
                "check the shapes of the inputs",
            ) from error
        results = results if isinstance(results, list | tuple) else [results]
        if len(results) != len(request["outputs"]):
            raise _Refused(
                "ModelFileError",
                "MNN could not run the model",
                f"it gave {len(results)} of {len(request['outputs'])} outputs",
                "check the shapes of the inputs",
            )
        answer = []
        for index, name in enumerate(request["outputs"]):
            file = f"out{index}.npy"
            layout = self.save(results[index], name, folder / file)
            answer.append({"name": name, "file": file, "format": layout})
        return {"outputs": answer}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer every line of ``requests`` until they end."""
    runner: _Runner | None = None
    for line in requests:
        try:
            if runner is None:
                runner = _Runner()
            answer = runner.run(json.loads(line))
        except _Refused as refused:
            answer = refused.answer
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Entry point; standard output is for answers alone, whatever MNN prints."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
