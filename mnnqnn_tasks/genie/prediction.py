"""What Genie's loader takes from a config, and what it says: a table or a refusal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderConfig:
    """What the loader takes from genie_config.json.

    Attributes:
        context_size: ``dialog.context.size``, None where there is no config.
        long_context: whether ``dialog.engine.longcontext`` is there.
        pos_id_dim: ``pos-id-dim``, half the head dimension.
        kv_dim: ``kv-dim``, the head dimension.
        vocabulary: ``dialog.context.n-vocab``.
    """

    context_size: int | None = None
    long_context: bool = False
    pos_id_dim: int | None = None
    kv_dim: int | None = None
    vocabulary: int | None = None


@dataclass(frozen=True)
class Variant:
    """One (AR, CL) of the loader's table.

    Attributes:
        ar, cl: tokens per call and context length, -1 where the loader found none.
        graphs: names in the order of the splits, index 0 first.
    """

    ar: int
    cl: int
    graphs: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """Why the loader does not take the bundle.

    Attributes:
        rule: key of the rule that it follows from.
        message: what the loader prints.
        graphs: names of the graphs that it is about.
    """

    rule: str
    message: str
    graphs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """The table that the loader builds, and why it refuses it, if it does.

    Attributes:
        version: of QAIRT.
        variants: by (AR, CL), ascending.
        refusals: what the loader prints, in its order; empty where it takes the bundle.
    """

    version: str
    variants: tuple[Variant, ...]
    refusals: tuple[Refusal, ...]

    @property
    def accepted(self) -> bool:
        """Whether the loader takes the bundle."""
        return not self.refusals
