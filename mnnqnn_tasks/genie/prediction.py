"""What Genie's loader takes from a config, and what it says: a table or a refusal."""

from __future__ import annotations

from dataclasses import dataclass

from mnnqnn_tasks.genie.versions import Version


@dataclass(frozen=True)
class LoaderConfig:
    """What the loader takes from genie_config.json; None where a config does not say it.

    Attributes:
        context_size: ``dialog.context.size``, tokens.
        long_context: whether ``dialog.engine.longcontext`` is there.
        embedding: ``dialog.context.n-embd``; 1024 where a config does not say it.
        kv_dim: ``kv-dim`` of the backend, the head dimension.
        pos_id_dim: ``pos-id-dim`` of the backend, half the head dimension.
    """

    context_size: int | None = None
    long_context: bool = False
    embedding: int | None = None
    kv_dim: int | None = None
    pos_id_dim: int | None = None


@dataclass(frozen=True)
class Variant:
    """One (AR, CL) of the loader's table.

    Attributes:
        ar, cl: tokens per call and context length.
        graphs: names in the order of the splits, index 0 first.
    """

    ar: int
    cl: int
    graphs: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """Why the loader does not take the bundle.

    Attributes:
        rule: key of the rule (`mnnqnn_tasks.genie.rulebook.RULES`).
        message: what the loader prints; for a crash, the name of the signal.
        graphs: names of the graphs that it is about.
        crash: the process ends by a signal instead of a message.
        chance: it may as well load: the loader uses memory that it never set.
    """

    rule: str
    message: str
    graphs: tuple[str, ...] = ()
    crash: bool = False
    chance: bool = False


@dataclass(frozen=True)
class Prediction:
    """The table that the loader builds, and why it refuses it, if it does.

    Attributes:
        version: of QAIRT.
        variants: by (AR, CL), ascending; empty where the loader stops before it builds them.
        refusals: what the loader prints, in its order; empty where it takes the bundle.
    """

    version: Version
    variants: tuple[Variant, ...]
    refusals: tuple[Refusal, ...]

    @property
    def by_chance(self) -> bool:
        """Whether it depends on the memory's state if the loader takes the bundle or dies."""
        return bool(self.refusals) and all(refusal.chance for refusal in self.refusals)

    @property
    def accepted(self) -> bool:
        """Whether the loader takes the bundle."""
        return not self.refusals
