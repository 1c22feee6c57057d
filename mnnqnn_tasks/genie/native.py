"""libGenie in this process: what it says while it loads a bundle, and answers a question.

Only the child process of `mnnqnn_tasks.genie.witness` uses this module: the library may end
the process, prints where it likes and never lets go of the emulator.  Functions and values
are those of GenieLog.h and GenieDialog.h (QAIRT 2.47 to 2.51).
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import sys
from pathlib import Path
from typing import Any

LIBRARY = "libGenie.so"

#: Exit code where the library cannot be loaded; standard error says why.
UNLOADABLE = 66

_VERBOSE, _WARN = 4, 2
_SENTENCE_COMPLETE = 0
_LINE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1

#: What the emulator and the backend say of themselves, thousands of lines per token.
_BACKEND = re.compile(r"\s*(<[VID]>|[\w./]+\.(cc|h):\d+:)")
#: The one line at a low level that is wanted of a query: the prompt's token ids.
_TOKENS = b"dialog-tokens: "

_LogCallback = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
)
_QueryCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)


class Session:
    """One dialog; every step is told on ``events`` before and after it is taken.

    Events are JSON lines: ``{"step": name}`` before a call, ``{"status": [name, code]}``
    after it, ``{"log": [level, text]}``, ``{"token": text}``, ``{"api": "1.21.0"}``,
    ``{"lacks": name}`` of a function that the library does not have.
    """

    def __init__(self, library: Path, events: int) -> None:
        self._events = events
        self._asking = False
        self._libc: Any = ctypes.CDLL(None)
        self._libc.vsnprintf.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_void_p,
        ]
        self.tell(step="dlopen")
        self._genie: Any = ctypes.CDLL(str(library))
        numbers = [self._function(f"Genie_getApi{n}Version") for n in _NUMBERS]
        self.tell(api=".".join(str(number()) for number in numbers if number))
        # What the library keeps a pointer to must live as long as it does.
        self._log_callback = _LogCallback(self._log)
        self._query_callback = _QueryCallback(self._answer)
        self._dialog = ctypes.c_void_p()

    def tell(self, **event: object) -> None:
        """Write an event at once, so that it survives a crash."""
        os.write(self._events, (json.dumps(event) + "\n").encode())

    def _log(self, _handle: int, form: bytes, level: int, _time: int, arguments: int) -> None:
        if self._asking and level > _WARN and not form.startswith((_TOKENS, b"%s")):
            return
        buffer = ctypes.create_string_buffer(_LINE_BYTES)
        self._libc.vsnprintf(buffer, _LINE_BYTES, form, arguments)
        text = buffer.value.decode("utf-8", "replace").strip()
        if self._asking and level > _WARN and not text.startswith(_TOKENS.decode()):
            return
        if text and not (level > _WARN and _BACKEND.match(text)):
            self.tell(log=[level, text])

    def _answer(self, text: bytes | None, _code: int, _user: int) -> None:
        if text:
            self.tell(token=text.decode("utf-8", "replace"))

    def _function(self, name: str) -> Any:
        """A function of the library, None where it has none of this name."""
        found = getattr(self._genie, name, None)
        if found is None:
            self.tell(lacks=name)
        else:
            found.restype = ctypes.c_int32
        return found

    def _call(self, name: str, *arguments: Any) -> bool:
        """Call a function of the library; whether it succeeded."""
        self.tell(step=name)
        function = self._function(name)
        if function is None:
            return False
        code = function(*arguments)
        self.tell(status=[name, code])
        return bool(code == 0)

    def load(self, config: bytes) -> bool:
        """Make a dialog of a config; whether the library took it."""
        log, made = ctypes.c_void_p(), ctypes.c_void_p()
        return (
            self._call("GenieLog_create", None, self._log_callback, _VERBOSE, ctypes.byref(log))
            and self._call("GenieDialogConfig_createFromJson", config, ctypes.byref(made))
            and self._call("GenieDialogConfig_bindLogger", made, log)
            and self._call("GenieDialog_create", made, ctypes.byref(self._dialog))
        )

    def ask(self, text: str, tokens: int) -> bool:
        """Query the dialog for at most ``tokens`` tokens; whether the library answered."""
        self._asking = True
        return self._call(
            "GenieDialog_setMaxNumTokens", self._dialog, ctypes.c_uint32(tokens)
        ) and self._call(
            "GenieDialog_query",
            self._dialog,
            text.encode("utf-8", "surrogateescape"),
            _SENTENCE_COMPLETE,
            self._query_callback,
            None,
        )


_NUMBERS = ("Major", "Minor", "Patch")


def main() -> None:
    """Program: standard input holds the request, its ``events`` is the descriptor to tell on."""
    request = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A crash is a result here; gigabytes of core in the user's bundle are not.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if os.getppid() != request["parent"]:  # it died before the line above
        os._exit(1)
    try:
        session = Session(Path(request["library"]), request["events"])
    except OSError as error:
        os.write(2, str(error).encode("utf-8", "replace"))
        os._exit(UNLOADABLE)
    taken = session.load(request["config"].encode())
    if taken and request["ask"] is not None:
        session.ask(request["ask"], request["tokens"])
    ctypes.CDLL(None).fflush(None)
    os._exit(0)  # no destructors: the library's own may crash
