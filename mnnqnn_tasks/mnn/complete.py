"""Whether a model folder has all that a bundle will need, and whether it fits together.

What MNN's LLM engine insists on (``llm.cpp``, ``diskembedding.cpp``), asked of the model
folder before anything is built from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.configs import EXPORT_AGAIN, embeddings_in_weight, trouble
from mnnqnn_tasks.mnn.embedding import EMBEDDINGS, open_embedding
from mnnqnn_tasks.mnn.folder import ModelFolder
from mnnqnn_tasks.mnn.inputs import folder_samples
from mnnqnn_tasks.mnn.table import Table

#: What MNN reads where no config names another tokenizer.
TOKENIZER = "tokenizer.txt"

#: Keys that the export sets in the bundle's config, and that llm_config.json overrides.
EXPORT_KEYS = ("llm_model", "llm_weight", "chunk_limits", "base_dir", "npu_model_dir")

#: Ops that leave the last axis of their first input as it is; a Reshape is looked into.
_KEEP_ROWS = ("ConvertTensor", "Cast", "UnaryOp", "BinaryOp", "TanH", "Reshape")
_CONSTANT = ("Const", "TrainableParam")


def _needed(folder: ModelFolder) -> Iterator[tuple[str, str, object]]:
    """What MNN cannot start without: what it is, the key that names it, its name."""
    settings = folder.settings
    yield "tokenizer", "tokenizer_file", settings.get("tokenizer_file", TOKENIZER)
    if embeddings_in_weight(settings):
        yield "embeddings", "llm_weight", folder.weight
    else:
        yield "embeddings", "embedding_file", settings.get("embedding_file", EMBEDDINGS)


def check_complete(folder: ModelFolder, net: Table) -> None:
    """Refuse a model that could be cut and linked, and then could not be run.

    Args:
        net: the model in ``folder``.

    Raises:
        ModelFileError: when llm_config.json sets what the export must, when the tokenizer
            or the embeddings are missing, when there are fewer embeddings than
            the model has tokens, or when the configs do not describe the model's inputs.
    """
    settings = folder.settings
    for key in EXPORT_KEYS:
        if key in folder.llm_config:
            raise ModelFileError(
                f"llm_config.json sets {key!r}, which would override what the export sets",
                where=str(folder.path),
                todo=f"move {key!r} from llm_config.json to config.json",
            )
    for what, key, name in _needed(folder):
        why = trouble(folder.path / str(name)) if name else "its name is empty"
        if why is not None:
            said = f"{key} names it" if key in settings else f"no config sets {key}"
            raise ModelFileError(
                f"the model folder has no {what}",
                where=str(folder.path),
                why=f"MNN would read {name!r} ({said}): {why}",
                todo=EXPORT_AGAIN,
            )
    folder_samples(folder, net, 1)
    wanted = vocabulary(net)
    embedding = open_embedding(folder, wanted)
    # More rows than logits are fine: a model may read tokens that it never says.
    if embedding is not None and wanted is not None and embedding.count < wanted:
        row = embedding.hidden * embedding.bits // 8
        raise ModelFileError(
            "the embeddings do not fit the model",
            where=str(embedding.path),
            why=f"the model has logits for {wanted} tokens, which is {wanted * row} bytes of "
            f"embeddings; there are {embedding.count * row} bytes for {embedding.count} tokens",
            todo=EXPORT_AGAIN,
        )


def vocabulary(net: Table) -> int | None:
    """For how many tokens the model has logits; ``None`` where that is not certain."""
    names = list(net.tensorName or ())
    if "logits" not in names:
        return None
    ops = [op for op in net.oplists or () if op.outputIndexes is not None]
    makers = {int(tensor): op for op in ops for tensor in op.outputIndexes}
    tensor = names.index("logits")
    widths: set[int] = set()
    for _ in range(len(ops)):
        op = makers.get(tensor)
        if op is None:
            return None
        if op.type == "Convolution":
            count = int(op.main.common.outputCount)
            return count if widths <= {count} else None
        inputs = [int(i) for i in op.inputIndexes] if op.inputIndexes is not None else []
        # A constant beside the logits scales or caps them.
        inputs = [i for i in inputs if i in makers and makers[i].type not in _CONSTANT]
        if op.type not in _KEEP_ROWS or len(inputs) != 1:
            return None
        if op.type == "Reshape":
            dims = op.main.dims
            if dims is None or len(dims) == 0:
                return None
            widths |= {int(dims[-1])} - {-1, 0}
        tensor = inputs[0]
    return None
