"""Every failure has a name.

One exception type per kind of trouble.  Each carries what failed, where, why and
what to do about it; the command line prints these four parts and nothing else, so a
user's mistake never ends in a traceback.
"""

from __future__ import annotations


class MnnqnnError(Exception):
    """Base of all errors that a user is meant to read.

    Args:
        what: what failed, one short sentence without a full stop.
        where: the file, line, op or task that it failed on.
        why: the cause, as precisely as it is known.
        todo: what the reader can do about it.
        tail: last lines that a tool or a library printed, shown under the message.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        todo: str | None = None,
        tail: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.todo = todo
        self.tail = tail

    def __str__(self) -> str:
        parts = [self.what if self.where is None else f"{self.where}: {self.what}"]
        if self.why:
            parts.append(f"  why: {self.why}")
        if self.todo:
            parts.append(f"  to do: {self.todo}")
        if self.tail:
            parts.append("  last lines:")
            parts.extend(f"    {line}" for line in self.tail.splitlines())
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders; the default pickling loses keyword arguments.
        return _rebuild, (type(self), self.what, self.where, self.why, self.todo, self.tail)


def _rebuild(
    cls: type[MnnqnnError],
    what: str,
    where: str | None,
    why: str | None,
    todo: str | None,
    tail: str | None,
) -> MnnqnnError:
    return cls(what, where=where, why=why, todo=todo, tail=tail)


class PipelineError(MnnqnnError):
    """A pipeline YAML file is malformed or contradicts itself."""


class ModelFileError(MnnqnnError):
    """A model file is missing, truncated, foreign or inconsistent."""


class StaleInputError(MnnqnnError):
    """An input changed while it was being used; what was made from it is not trusted."""


class PartitionError(MnnqnnError):
    """The model cannot be cut into host and NPU pieces."""


class TranslateError(MnnqnnError):
    """A subgraph cannot be expressed as a QNN graph."""


class UnsupportedOp(TranslateError):
    """An op (or this use of it) has no translation; it stays on the CPU."""


class NetFileError(MnnqnnError):
    """A ``*_net.json`` file breaks its schema or the rules of the IR."""


class SourceFileError(MnnqnnError):
    """What MNN's ``compilefornpu`` left (sources, raw data, merges) is not whole or not legal."""


class QnnError(MnnqnnError):
    """A QNN library call failed, or a binary read back differs from what was asked."""


class NativeCrash(MnnqnnError):
    """A worker process was ended by a signal, most often inside a native library."""


class ToolMissing(MnnqnnError):
    """A wheel, library or Python version that is needed is missing or too old."""


class ToolError(MnnqnnError):
    """An external tool failed, or did not make what it was asked for."""


class DiskError(MnnqnnError):
    """A file could not be written: disk full, no permission, read-only."""


class BusyError(MnnqnnError):
    """Another run is using the same build folder."""


class CacheError(MnnqnnError):
    """A setting of the cache is wrong, or a cache command cannot do its work."""


class ClusterError(MnnqnnError):
    """A Dask cluster cannot be reached, or its workers cannot do the work."""


class BundleError(MnnqnnError):
    """A bundle cannot be put together."""


class VerifyError(MnnqnnError):
    """The exported graphs do not compute what the CPU model computes."""


class GenieError(MnnqnnError):
    """A file of a Genie bundle cannot be read, or asks for something that cannot be done."""
