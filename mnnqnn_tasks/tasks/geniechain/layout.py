"""Where the files of a Genie model lie in the build folder."""

from __future__ import annotations

from mnnqnn_tasks.tasks.layout import Layout


class GenieLayout(Layout):
    """Paths of one model; logs, work folders and bundles lie where any model's do."""

    @property
    def values_json(self) -> str:
        """The names of all graphs, and what compilers are told of them."""
        return self._in("names.json")

    def named(self, graph: str) -> str:
        """The folder of a graph's source under its planned name."""
        return self._in("graphs", graph)

    def listing(self, graph: str) -> str:
        """Digests of the files in `named`."""
        return self._in("graphs", f"{graph}.json")

    def target(self, target: str) -> str:
        """Binaries and config of a target as they are in the bundle, and reports."""
        return self._in("targets", target)

    def report(self, target: str, name: str) -> str:
        """The read-back report of a context binary."""
        return self._in("targets", target, f"{name}.json")

    def lint(self, target: str) -> str:
        """What the lint says of a target."""
        return self._in("lint", f"{target}.json")
