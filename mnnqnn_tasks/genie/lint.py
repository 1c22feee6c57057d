"""Everything that is wrong with the graphs of a bundle, by release of the loader."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mnnqnn_tasks.genie import dataflow, loading, naming
from mnnqnn_tasks.genie.config_problem import Problem
from mnnqnn_tasks.genie.config_read import BundleConfig
from mnnqnn_tasks.genie.finding import Finding
from mnnqnn_tasks.genie.graphs import ContextFile, GraphInfo
from mnnqnn_tasks.genie.order import in_order, out_of_order
from mnnqnn_tasks.genie.prediction import LoaderConfig, Prediction, Refusal
from mnnqnn_tasks.genie.rulebook import holds
from mnnqnn_tasks.genie.rules import predict
from mnnqnn_tasks.genie.versions import VERSIONS, Version, nearest, parse_version


@dataclass(frozen=True)
class Lint:
    """What the lint knows of a bundle.

    Attributes:
        files: what was read.
        predictions: one per release asked for, oldest first.
        findings: errors first.
    """

    files: tuple[ContextFile, ...]
    predictions: tuple[Prediction, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """Number of findings that are errors."""
        return sum(finding.advice.severity == "error" for finding in self.findings)


def lint(
    files: Sequence[ContextFile],
    config: BundleConfig | None = None,
    versions: Sequence[Version] = VERSIONS,
    load: bool = False,
    problems: Iterable[Problem] = (),
) -> Lint:
    """Judge a bundle for the loaders of ``versions``.

    Args:
        load: load every binary on the host emulator as well, which needs its size in memory.
        problems: what `mnnqnn_tasks.genie.config_check` says of the config.
    """
    graphs = [graph for file in files for graph in file.graphs]
    loader = config.loader if config else LoaderConfig()
    predictions = tuple(predict(graphs, loader, version) for version in versions)
    found: list[Finding] = []
    for prediction in predictions:
        found += _of_version(prediction, graphs)
    every = tuple(map(str, versions))
    found += naming.check(graphs, every)
    found += _names_twice(graphs, every)
    found += _variants(predictions[-1], every)
    found += _config(files, config, predictions[-1], every)
    for problem in problems:
        minding = tuple(str(version) for version in versions if problem.holds(nearest(version)))
        found += [_problem(problem, minding)] if minding else []
    found += _loaded(files, every) if load else ()
    merged = _merged(found)
    ranked = sorted(merged, key=lambda finding: finding.advice.severity != "error")
    return Lint(tuple(files), predictions, tuple(ranked))


def _of_version(prediction: Prediction, graphs: Sequence[GraphInfo]) -> Iterator[Finding]:
    """What holds for one release: its refusals, its order of splits, and what follows."""
    version = (str(prediction.version),)
    by_name = {graph.name: graph for graph in graphs}
    refusals = list(prediction.refusals)
    for variant in prediction.variants:
        if not out_of_order(variant.graphs):
            continue
        mine = [r for r in refusals if _follows(r, variant.graphs)]
        refusals = [r for r in refusals if r not in mine]
        what = (
            f"the splits of AR-{variant.ar} CL-{variant.cl} are taken in the order "
            f"{naming.numbers(variant.graphs)}"
        )
        yield Finding("split-order", what, variant.graphs, version, tuple(r.message for r in mine))
    for refusal in refusals:
        what = refusal.message
        if refusal.crash:
            what = f"the loader ends with {what} at {', '.join(refusal.graphs)}"
        yield Finding(refusal.rule, what, refusal.graphs, version, (refusal.message,))
    for variant in prediction.variants:
        # What a wrong order does to the data is told by the order's own finding.
        names = in_order(variant.graphs)
        yield from dataflow.check(replace(variant, graphs=names), by_name, version)


def _follows(refusal: Refusal, names: tuple[str, ...]) -> bool:
    """Whether a refusal follows from the order of these splits."""
    consequences = ("first-input", "last-output", "kv-mapping")
    return refusal.rule in consequences and not set(refusal.graphs).isdisjoint(names)


def _names_twice(graphs: Sequence[GraphInfo], versions: tuple[str, ...]) -> Iterator[Finding]:
    files: dict[str, list[str]] = {}
    for graph in graphs:
        files.setdefault(graph.name, []).append(graph.file)
    for name, places in files.items():
        if len(places) > 1:
            where = " and ".join(dict.fromkeys(places))
            yield Finding(
                "name-twice",
                f"{len(places)} graphs are called {name}, in {where}",
                (name,),
                versions,
            )


def _variants(prediction: Prediction, versions: tuple[str, ...]) -> Iterator[Finding]:
    lengths = {variant.ar for variant in prediction.variants}
    names = tuple(name for variant in prediction.variants for name in variant.graphs)
    if lengths and 1 not in lengths:
        yield Finding("no-token", f"the graphs take {_list(lengths)} tokens", names, versions)
    if lengths == {1}:
        yield Finding("no-prompt", "every graph takes one token", names, versions)


def _list(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def _config(
    files: Sequence[ContextFile],
    config: BundleConfig | None,
    prediction: Prediction,
    versions: tuple[str, ...],
) -> Iterator[Finding]:
    chips: dict[int, list[str]] = {}
    for file in files:
        if file.soc_id:
            chips.setdefault(file.soc_id, []).append(file.file)
    if config is not None and config.soc_id is not None and chips:
        chips.setdefault(config.soc_id, []).append(config.extensions)
    if len(chips) > 1:
        what = "; ".join(f"soc_id {soc} in {', '.join(names)}" for soc, names in chips.items())
        yield Finding("soc-differs", what, (), versions)
    if config is None:
        return
    largest = max((variant.cl for variant in prediction.variants), default=0)
    size = config.loader.context_size
    taking = tuple(v for v in versions if not holds("context-size-equal", parse_version(v)))
    if size is not None and size < largest and taking:
        what = f"context.size is {size}, the largest CL {largest}"
        yield Finding("context-size-below", what, (), taking)
    yield from _binaries(files, config, versions)


def _binaries(
    files: Sequence[ContextFile], config: BundleConfig, versions: tuple[str, ...]
) -> Iterator[Finding]:
    """Files that ``ctx-bins`` does not have, by what they are on the disk."""
    if not config.binaries:
        return
    known = {os.path.realpath(config.path(name)) for name in config.binaries}
    for file in files:
        if not file.dump and os.path.realpath(file.file) not in known:
            yield Finding("ctx-bins", f"{config.file} does not list {file.file}", (), versions)


def _problem(problem: Problem, versions: tuple[str, ...]) -> Finding:
    rule = "config" if problem.severity == "error" else "config-doubt"
    return Finding(rule, f"{problem.place}: {problem.what}; {problem.todo}", (), versions)


def _loaded(files: Sequence[ContextFile], versions: tuple[str, ...]) -> Iterator[Finding]:
    """What only loading tells: whether a binary was changed after it was compiled."""
    for file in files:
        if file.dump:
            continue
        answer = loading.retrieve(file)
        if answer.untried:
            yield Finding("not-loaded", f"{file.file}: {answer.why}", (), versions)
        elif answer.why:
            says = "Create From Binary FAILED"
            yield Finding("binary-changed", f"{file.file}: {answer.why}", (), versions, (says,))
        for name in answer.missing:
            what = f"{file.file}: the loaded context has no graph {name}"
            says = "Unable to retrieve graph handle"
            yield Finding("binary-changed", what, (name,), versions, (says,))


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for what holds in several releases."""
    merged: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.what, finding.graphs)
        first = merged.get(key)
        if first is None:
            merged[key] = finding
            continue
        merged[key] = replace(
            first,
            versions=tuple(dict.fromkeys((*first.versions, *finding.versions))),
            says=tuple(dict.fromkeys((*first.says, *finding.says))),
        )
    return list(merged.values())
