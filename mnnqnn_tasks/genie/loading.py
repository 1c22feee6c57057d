"""Loading a binary of a bundle on the host emulator, as Genie does on the board."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import MnnqnnError, NativeCrash
from mnnqnn_tasks.genie.graphs import ContextFile


@dataclass(frozen=True)
class Answer:
    """What loading a binary gave.

    Attributes:
        missing: graphs that its metadata names and the loaded context does not have.
        why: why it was not loaded; empty if it was.
        untried: the host could not even try; this says nothing about the binary.
    """

    missing: tuple[str, ...] = ()
    why: str = ""
    untried: bool = False

    @property
    def sound(self) -> bool:
        """Whether it was loaded and has every graph."""
        return not self.missing and not self.why


def retrieve(file: ContextFile) -> Answer:
    """Load a context binary and ask it for its graphs.

    Raises:
        ToolMissing: no QNN library.
    """
    from mnnqnn_tasks.qnn import run
    from mnnqnn_tasks.qnn.loading import REFUSED

    if not file.soc_id:
        return Answer(why="the binary does not tell its chip", untried=True)
    names = [graph.name for graph in file.graphs]
    try:
        return Answer(tuple(run.load(Path(file.file).absolute(), file.soc_id, names)))
    except NativeCrash as error:
        return Answer(why=f"{error.what} ({error.why})")
    except MnnqnnError as error:
        return Answer(why=f"{error.what} ({error.why})", untried=error.what != REFUSED)
