"""The stages of a Genie pipeline as functions of paths and JSON values.

Each returns the files that it made, and values that the task database keeps.  Imports are
inside, so that a run with nothing to do loads none of this.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnqnn_tasks.errors import BundleError, GenieError, ToolError, ToolMissing
from mnnqnn_tasks.files import disk_errors, sha256_file, write_bytes, write_json
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.geniechain import sources

if TYPE_CHECKING:
    from mnnqnn_tasks.qnn.binary import BinaryInfo

Outcome = tuple[list[str], dict[str, Any]]


def values(models: Sequence[tuple[str, Sequence[int]]], out: str) -> Outcome:
    """The names of all graphs, and what compilers are told of them.

    Args:
        models: file of every graph, and AR, CL, split and splits of its name.

    Raises:
        GenieError, DiskError.
    """
    from mnnqnn_tasks.genie.names import GraphName
    from mnnqnn_tasks.genie.onnx_plan import Assignment, check, compiler_values

    given = check([Assignment(Path(path), GraphName(*numbers)) for path, numbers in models])
    write_json(out, compiler_values(given), durable=False)
    return [out], {}


def name_onnx(source: str, graph: str, out: str, listing: str) -> Outcome:
    """A copy of an ONNX model whose graph has the planned name, external weights beside it.

    Raises:
        GenieError: no ONNX model.
        StaleInputError: something wrote to it meanwhile.
        DiskError.
    """
    from mnnqnn_tasks.genie.onnx_name import rename

    with disk_errors(out):
        shutil.rmtree(out, ignore_errors=True)
    before, model = sources.numbers(sources.files(source).values()), Path(source)
    done = rename(model, graph, Path(out) / model.name)
    files = _list(source, graph, listing, before)
    digests = {str(Path(out) / name): files[name] for name in done.external}
    weights = {str(model.parent / name): files[name] for name in done.external}
    return [str(done.path), *digests, listing], {"weights": weights, "digests": digests}


def name_net(source: str, graph: str, out: str, listing: str) -> Outcome:
    """A copy of a ``net.json`` whose graph has the planned name.

    Raises:
        NetFileError: no such file, or a wrong one.
        StaleInputError: something wrote to it meanwhile.
        DiskError.
    """
    from dataclasses import replace

    from mnnqnn_tasks.qnn import netjson

    with disk_errors(out):
        shutil.rmtree(out, ignore_errors=True)
    before = sources.numbers(sources.files(source).values())
    path = Path(out) / f"{graph}_net.json"
    netjson.save(replace(netjson.load(Path(source)), name=graph), path)
    _list(source, graph, listing, before)
    return [str(path), listing], {}


def _list(source: str, graph: str, listing: str, before: sources.Before) -> dict[str, str]:
    """Write the listing of a graph whose files were not written to; their digests."""
    said = sources.listing(source, graph, session.current().digest)
    sources.require_unchanged(before)
    write_bytes(listing, sources.listing_bytes(said), durable=False)
    files: dict[str, str] = said["files"]
    return files


def link(
    nets: Sequence[str], blobs: str, target: Mapping[str, Any], out: str, report: str
) -> Outcome:
    """The context binary of one split by the wheel's QNN library.

    Raises:
        NetFileError, QnnError, NativeCrash, ToolMissing, DiskError.
    """
    from mnnqnn_tasks.qnn import run
    from mnnqnn_tasks.toolchain.native import target_options

    made = run.link(
        [Path(net) for net in nets], Path(blobs), target_options(target), Path(out), Path(report)
    )
    _check_names([Path(net).name.removesuffix("_net.json") for net in nets], made, out)
    return [out, report], {}


def compile(
    command: Sequence[str],
    base: str,
    graphs: Sequence[tuple[str, str]],
    fields: Mapping[str, str],
    target: Mapping[str, Any],
    out: str,
    report: str,
    tools: Mapping[str, Any],
) -> Outcome:
    """The context binary of one split by a user's own command.

    Args:
        command: program and arguments with placeholders.
        base: folder of the pipeline, where the command runs.
        graphs: names in the order of the plan, each with the folder of its model.
        fields: what stands for the placeholders that are the same for every graph.
        tools: label, log, work folder and time limit.

    Raises:
        ToolMissing, ToolError, NativeCrash, QnnError, GenieError, DiskError.
    """
    from mnnqnn_tasks.qnn import run
    from mnnqnn_tasks.toolchain.external.linking import extensions_config
    from mnnqnn_tasks.toolchain.external.runner import Runner
    from mnnqnn_tasks.toolchain.external.workplace import expect, workplace
    from mnnqnn_tasks.toolchain.native import target_options

    program = shutil.which(command[0])
    if program is None:
        raise ToolMissing(
            "there is no such compiler",
            where=command[0],
            todo="correct compile.command: a path, or a program in PATH",
        )
    runner = Runner(tools["label"], Path(tools["log"]), tools["limit_s"], tools["live"])
    names = [name for name, _ in graphs]
    with workplace(Path(tools["work"])) as place:
        made, settings = place / Path(out).name, place / "extensions.json"
        write_json(settings, extensions_config(names, target_options(target)), durable=False)
        models = [_model_in(folder) for _, folder in graphs]
        shared = {
            **fields,
            "onnxs": ",".join(models),
            "graphs": ",".join(names),
            "extensions": str(settings),
            "out": str(made),
        }
        each = [{"onnx": m, "graph": n} for m, n in zip(models, names, strict=True)]
        tail = runner.run([program, *arguments(command[1:], shared, each)], Path(base))
        expect(made, Path(program).name, runner.label, tail, runner.log)
        info = run.inspect(made)
        _check_names(names, info, runner.label)
        if info.soc_id not in (None, target["soc_id"]):
            raise ToolError(
                f"the binary is for soc_id {info.soc_id}, asked {target['soc_id']}",
                where=runner.label,
                todo="give the compiler {soc_id} or {extensions}",
            )
        with disk_errors(out):
            Path(out).parent.mkdir(parents=True, exist_ok=True)
            os.replace(made, out)
    write_json(report, info.to_json(), durable=False)
    return [out, report], {}


def arguments(
    command: Sequence[str], shared: Mapping[str, str], each: Sequence[Mapping[str, str]]
) -> list[str]:
    """Arguments with everything put in for the placeholders.

    One with ``{onnx}`` or ``{graph}`` becomes as many as there are graphs.
    """
    from mnnqnn_tasks.spec.genie import PER_GRAPH, fields_of

    made = []
    for text in command:
        per_graph = not set(PER_GRAPH).isdisjoint(fields_of(text))
        made += [text.format(**shared, **one) for one in (each if per_graph else [{}])]
    return made


def _model_in(folder: str) -> str:
    """The model in the folder of a graph's source."""
    said = json.loads(Path(f"{folder}.json").read_text("utf-8"))
    return os.path.join(folder, said["model"])


def _check_names(wanted: Sequence[str], info: BinaryInfo, where: str) -> None:
    """The graphs of a binary have the planned names.

    Raises:
        GenieError: with both lists.
    """
    found = [graph.name for graph in info.graphs]
    if sorted(found) != sorted(wanted):
        raise GenieError(
            "the binary's graphs are not called as planned",
            where=where,
            why=f"they are {', '.join(found)}; planned: {', '.join(wanted)}",
            todo="have the compiler keep graph.name, or give it {graph}, {graphs} or "
            "{extensions}; a compiled binary cannot be renamed",
        )


def config(
    config: Mapping[str, Any], device: Mapping[str, Any], tokenizer: str, out: str
) -> Outcome:
    """``genie_config.json``, the backend extensions file and the tokenizer.

    Args:
        config: fields of `GenieConfig`, with ``rope`` and ``sampler`` as JSON.

    Raises:
        GenieError: the tokenizer is missing.
        DiskError.
    """
    from mnnqnn_tasks.genie.config import Device, GenieConfig, Penalty, Rope, Sampler, write
    from mnnqnn_tasks.toolchain.wholefolder import copy_file

    folder, sampler = Path(out), dict(config["sampler"])
    if "penalty" in sampler:
        sampler["penalty"] = Penalty(**sampler["penalty"])
    goal = folder / "tokenizer.json"
    try:
        copy_file(tokenizer, goal)
    except OSError as error:
        raise GenieError(
            "cannot read the tokenizer",
            where=tokenizer,
            why=error.strerror,
            todo="correct 'tokenizer' of the model",
        ) from error
    told = GenieConfig(
        **{
            **config,
            "eos_tokens": tuple(config["eos_tokens"]),
            "ctx_bins": tuple(config["ctx_bins"]),
            "rope": Rope(**config["rope"]),
            "sampler": Sampler(**sampler),
        }
    )
    path = write(folder, told, Device(**device))
    return [str(path), str(folder / told.extensions), str(goal)], {}


def lint(folder: str, binaries: Sequence[str], versions: Sequence[str], out: str) -> Outcome:
    """Ask our model of every release's loader; errors end the task.

    Args:
        folder: binaries, config and tokenizer.
        binaries: names in the order of the splits.
        versions: of QAIRT; empty for every known one.

    Raises:
        GenieError: with the lint's text.
        ToolMissing, DiskError.
    """
    from mnnqnn_tasks.genie import report
    from mnnqnn_tasks.genie.config import CONFIG
    from mnnqnn_tasks.genie.config_check import check
    from mnnqnn_tasks.genie.config_read import read_config
    from mnnqnn_tasks.genie.graphs import read
    from mnnqnn_tasks.genie.lint import lint as judge
    from mnnqnn_tasks.genie.versions import VERSIONS, parse_version
    from mnnqnn_tasks.spec.soc import table

    place = Path(folder)
    asked = sorted({parse_version(text) for text in versions}) or VERSIONS
    files, said = [read(place / name) for name in binaries], read_config(place / CONFIG)
    found = judge(files, said, asked, problems=check(said, files, table().arch_of))
    if found.errors:
        text = "\n".join(f"    {line}".rstrip() for line in report.as_text(found).splitlines())
        raise GenieError(
            "Genie would not run the model",
            where=folder,
            why=f"\n{text}",
            todo="follow the remedies above, then run again; the bundle before this one stays",
        )
    write_json(out, report.as_json(_relative(found)), durable=False)
    return [out], {}


def _relative(found: Any) -> Any:
    """The lint's result without the build folder: the report is the same wherever it is made."""
    from dataclasses import replace

    files = tuple(
        replace(
            file,
            file=Path(file.file).name,
            graphs=tuple(replace(g, file=Path(g.file).name) for g in file.graphs),
        )
        for file in found.files
    )
    return replace(found, files=files)


def bundle(folder: str, names: Sequence[str], target: Mapping[str, Any], out: str) -> Outcome:
    """Put the folder together that goes to the device, whole or not at all.

    Args:
        folder: where the files called ``names`` are.

    Raises:
        BundleError: a file is gone, or something else lies at ``out``.
        DiskError.
    """
    from mnnqnn_tasks.toolchain.bundlefolder import MANIFEST, refuse_foreign_folder
    from mnnqnn_tasks.toolchain.wholefolder import copy_file, whole_folder

    goal = Path(out)
    refuse_foreign_folder(goal)
    digests: dict[str, str] = {}
    with whole_folder(goal) as new:
        for name in names:
            try:
                digests[name], _ = copy_file(Path(folder) / name, new / name)
            except OSError as error:
                raise BundleError(
                    "a file of the bundle cannot be read",
                    where=str(Path(folder) / name),
                    why=error.strerror,
                    todo="run again: it is made anew",
                ) from error
        said = {"kind": "genie", "version": 1, "target": dict(target), "files": dict(digests)}
        write_json(new / MANIFEST, said)
        digests[MANIFEST] = sha256_file(new / MANIFEST)
    known = {str(goal / name): digest for name, digest in digests.items()}
    return list(known), {"digests": known}
