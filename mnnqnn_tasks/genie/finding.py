"""A finding of the lint, and what to tell about each kind of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]

#: What mends a finding: new split numbers in place, compiling again, or the config.
Mend = Literal["renumber", "recompile", "config", "files"]


@dataclass(frozen=True)
class Advice:
    """What a kind of finding means.

    Attributes:
        severity: an error keeps the model from loading or from speaking sense.
        mend: what mends it.
        symptom: what is seen on the board.
        cause: why.
        remedy: what to do.
    """

    severity: Severity
    mend: Mend
    symptom: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a bundle.

    Attributes:
        rule: key in `ADVICE`.
        what: what was found, one line.
        graphs: names of the graphs that it is about.
        versions: releases of QAIRT in which it holds.
        says: what the loader prints; empty where it is silent.
    """

    rule: str
    what: str
    graphs: tuple[str, ...]
    versions: tuple[str, ...]
    says: tuple[str, ...] = ()

    @property
    def advice(self) -> Advice:
        """What the finding means."""
        return ADVICE[self.rule]


_REFUSED = "the model does not load"
_GARBAGE = "the model loads and its output is garbage from the first token on"
_COMPILE = "compile again from ONNX or DLC; type, AR and CL of a compiled graph cannot be changed"
_NAME = "{type}_ar{N}_cl{M}_{K}_of_{T}, such as prompt_ar128_cl4096_2_of_6"

ADVICE: dict[str, Advice] = {
    "split-order": Advice(
        "error",
        "renumber",
        "the model does not load (input_ids, logits - Tensor not found), or speaks garbage",
        "the loader takes its split index from this order, not from the number K: up to QAIRT 2.49 "
        "names are sorted as strings, and _10_ comes before _2_; since 2.50 by K of _K_of_, and "
        "names without one come last",
        "compile again with K padded with zeros (_02_of_11), or with 9 splits or fewer; for "
        "binaries that cannot be compiled again: doit genie_renumber FILE... -o FOLDER",
    ),
    "name-incomplete": Advice(
        "warning",
        "recompile",
        "none as long as the tensors tell AR and CL; garbage from the first token on, or a model "
        "that does not load, where the loader has to look at the name",
        "the name is what the loader falls back on, and it has no ar or cl with a number behind it",
        f"name the graphs {_NAME}; {_COMPILE}",
    ),
    "cl-guessed": Advice(
        "error",
        "recompile",
        "graphs of one model land in different variants: the model does not load, crashes, or "
        "speaks garbage",
        "neither the tensors nor a cl in the name tell the context length, so the loader takes "
        "the largest number in the name, if above 501",
        f"name the graphs {_NAME}; {_COMPILE}",
    ),
    "name-contradicts": Advice(
        "warning",
        "recompile",
        "the loader ignores what the name says",
        "AR and CL come from the tensors wherever they tell them; a rename mends nothing",
        "compile the graph with the shapes that its name promises, or name it after its shapes",
    ),
    "splits-missing": Advice(
        "error",
        "files",
        f"{_GARBAGE}, or it stops at the first query",
        "the loader does not count: a variant with fewer splits than the others is taken, and "
        "what it has moves up to lower split indices",
        "give all files of the model; if that was all, compile the missing graphs",
    ),
    "splits-twice": Advice(
        "error",
        "recompile",
        f"{_GARBAGE}, or it does not load",
        "the loader sees two graphs of the same AR and CL as two splits, one behind the other; "
        "AR and CL come from the tensors, so a rename mends nothing",
        "compile each graph with the shapes of its own AR and CL, or leave one of the two out",
    ),
    "name-twice": Advice(
        "error",
        "recompile",
        f"{_GARBAGE}, or it does not load",
        "the loader keeps graphs by name: of two with one name it takes one and drops the other "
        "without a word",
        "give every graph of the model a name of its own and compile again; or drop the file "
        "that was listed twice",
    ),
    "unconnected": Advice(
        "error",
        "recompile",
        _GARBAGE,
        "splits are joined by tensor names: an input that no earlier split gives is filled with "
        "zeros before every call",
        "give the output of one split and the input of the next the same name and compile again; "
        "check that the splits are of one model and none is missing",
    ),
    "too-early": Advice(
        "error",
        "recompile",
        _GARBAGE,
        "an input is read before the split that computes it has run",
        "number the splits in the order in which they run and compile again",
    ),
    "zero-filled": Advice(
        "warning",
        "recompile",
        "garbage, if the model needs the input",
        "the input is none that the loader fills and no split gives it: it is all zeros",
        "make the input a constant of the graph, or name it as the loader expects it",
    ),
    "link-differs": Advice(
        "error",
        "recompile",
        _GARBAGE,
        "the loader passes the bytes of an output on as the input of the same name, whatever "
        "their shapes and types are",
        "export both splits with the same shape and type of that tensor",
    ),
    "kv-pair": Advice(
        "error",
        "recompile",
        "the loader crashes or the model forgets what it read",
        "the KV cache needs a key and a value, an input and an output, of every layer",
        "export the layer with all four past_key and past_value tensors",
    ),
    "context-size": Advice(
        "error",
        "config",
        _REFUSED,
        "context.size is larger than the context length of every graph",
        "set context.size to the largest CL, or compile graphs with a longer context",
    ),
    "context-size-equal": Advice(
        "error",
        "config",
        _REFUSED,
        "context.size is below the largest CL, and this release wants it to be the same",
        "set context.size to the largest CL, or leave out the graphs that are never used",
    ),
    "context-size-below": Advice(
        "warning",
        "config",
        "the model answers, and stops at context.size tokens though the graphs can take more",
        "context.size is below the largest CL",
        "set context.size to the largest CL, or leave out the graphs that are never used",
    ),
    "mask": Advice(
        "error",
        "recompile",
        _REFUSED,
        "no graph has an input named attention_mask",
        "name the mask attention_mask and compile again",
    ),
    "ar": Advice(
        "error",
        "recompile",
        _REFUSED,
        "neither the tensors nor an ar in the name tell how many tokens the graph takes",
        f"name the graphs {_NAME}; {_COMPILE}",
    ),
    "number": Advice(
        "error",
        "recompile",
        _REFUSED,
        "the loader reads a number in the name that does not fit 32 bits",
        f"name the graphs {_NAME}; {_COMPILE}",
    ),
    "cl-unknown": Advice(
        "error",
        "recompile",
        "the loader crashes or refuses the model",
        "neither the tensors nor the name tell the context length; such a graph joins every "
        "variant of its AR, and only one of them can be had, at one context length",
        f"name the graphs {_NAME}; {_COMPILE}",
    ),
    "kv-dimension": Advice(
        "error",
        "recompile",
        _REFUSED,
        "past_key inputs have neither CL nor CL - AR positions; CL is what the mask has, AR what "
        "input_ids has",
        "export mask, ids and KV cache with the same AR and CL",
    ),
    "kv-mapping": Advice(
        "error",
        "recompile",
        "the loader crashes (up to QAIRT 2.49)",
        "graphs of the same split index hold different layers: splits are missing, in another "
        "order, or in the variant of another context length",
        "see the other findings first: this one mostly follows from them",
    ),
    "first-input": Advice(
        "error",
        "recompile",
        _REFUSED,
        "the graph at split index 0 has neither input_ids nor embeddings as input",
        "name the input input_ids, or inputs_embeds with n-embd in the config; if another graph "
        "has it, the splits are in a wrong order",
    ),
    "last-output": Advice(
        "error",
        "recompile",
        _REFUSED,
        "the graph at the last split index has no output named logits",
        "name the output logits; if another graph has it, the splits are in a wrong order",
    ),
    "shape": Advice(
        "error",
        "recompile",
        _REFUSED,
        "a tensor has not the shape that AR, CL and the config ask for",
        "correct kv-dim, pos-id-dim or n-embd in the config if these are wrong; else export the "
        "graph again",
    ),
    "quantization": Advice(
        "error",
        "recompile",
        _REFUSED,
        "tensors of one name have different scales or offsets, in two splits or in two variants",
        "quantize all splits, prompt and token graphs with the same encodings",
    ),
    "positions": Advice(
        "error",
        "recompile",
        _REFUSED,
        "rotary positions are inputs of the model: position_ids_cos and position_ids_sin",
        "name the inputs so and compile again; a model with other positions needs "
        "positional-encoding in the config",
    ),
    "kv-cache": Advice(
        "error",
        "recompile",
        _REFUSED,
        "the variant with the most tokens and the longest context lacks past_key outputs",
        "name the KV cache past_key_{layer}_in, past_key_{layer}_out and compile again",
    ),
    "kv-values": Advice(
        "error",
        "recompile",
        "the process ends by a signal while the model loads",
        "the loader looks for a past_value output beside every past_key output",
        "name the KV cache past_key_{layer}_out, past_value_{layer}_out and compile again",
    ),
    "kv-value-inputs": Advice(
        "error",
        "recompile",
        "the model loads, or the process ends by a signal, as memory happens to be",
        "a past_key input has no past_value input beside it: the loader uses memory that it never "
        "set",
        "name the KV cache past_key_{layer}_in, past_value_{layer}_in and compile again",
    ),
    "no-token": Advice(
        "warning",
        "recompile",
        "every token costs as much as a whole prompt call",
        "no graph takes one token at a time (AR 1)",
        "compile token graphs as well, in the same binaries",
    ),
    "no-prompt": Advice(
        "warning",
        "recompile",
        "reading a prompt takes as long as writing it",
        "no graph takes more than one token at a time",
        "compile prompt graphs as well, in the same binaries",
    ),
    "soc-differs": Advice(
        "error",
        "recompile",
        "the model does not load on the board, or its output degrades",
        "the files are made for different chips, or for another one than the config names",
        "compile all files for the chip of the board, and name that chip in the extensions file",
    ),
    "ctx-bins": Advice(
        "error",
        "config",
        _REFUSED,
        "a file of the model is not in ctx-bins of the config",
        "list every file of the model in ctx-bins once, as a path from the config's folder",
    ),
    "binary-changed": Advice(
        "error",
        "recompile",
        "Create From Binary FAILED, or Unable to retrieve graph handle",
        "the file is not as the compiler wrote it: a name was changed in one of its two places, or "
        "its length",
        f"take the file as it was compiled; {_COMPILE}; doit genie_renumber changes split numbers",
    ),
    "not-loaded": Advice(
        "warning",
        "files",
        "none that is known",
        "the binary could not be loaded on this host, so nothing is known about its insides",
        "load it on the board, or install a newer onnxruntime-qnn",
    ),
    "config": Advice(
        "error",
        "config",
        "libGenie refuses the config, or answers are garbage",
        "a key, a value or a file of genie_config.json is not as libGenie wants it",
        "correct the place that is named (schemas/genie_config.schema.json has every key)",
    ),
    "config-doubt": Advice(
        "warning",
        "config",
        "an answer that begins well and drifts into garbage, where the chip is not named",
        "genie_config.json leaves something to chance",
        "add what is missing",
    ),
}
