"""One loaded ``libQnnHtp.so`` in this process: backend, device, context.

Only a worker process uses this module (`mnnqnn_tasks.qnn.worker`): the library can end
the process on a bad graph and keeps global state.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import QnnError, ToolMissing
from mnnqnn_tasks.qnn import abi, library
from mnnqnn_tasks.qnn.log import Log
from mnnqnn_tasks.qnn.options import TargetOptions

#: "Arch 68 set by custom config is different from arch associated with SoC 57, will
#: overwrite it to 75": v68 is the default, so nothing is printed for it.
_ARCH = re.compile(r"arch associated with SoC \d+, will overwrite it to (\d+)")


def dlopen(path: Path) -> Any:
    """Load a shared library.

    Raises:
        ToolMissing: with the loader's reason.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolMissing(
            "a QNN library cannot be loaded",
            where=str(path),
            why=str(error),
            todo="install the wheel again; it needs x86-64 Linux with glibc",
        ) from error


def config_list(structs: Sequence[Any], type_name: str) -> tuple[Any, list[Any]]:
    """A null-terminated array of pointers to configs, and what must stay alive with it."""
    pointer = ctypes.POINTER(abi.ctype(type_name))
    array = (pointer * (len(structs) + 1))()
    for index, item in enumerate(structs):
        array[index] = ctypes.pointer(item)
    return ctypes.cast(array, ctypes.c_void_p), [array, *structs]


def custom(type_name: str, struct: Any) -> Any:
    """Wrap an HTP custom config in the generic config ``type_name`` (option CUSTOM, 0)."""
    config = abi.ctype(type_name)()
    config.option = 0
    config.customConfig = ctypes.addressof(struct)
    config.keep = struct
    return config


class Htp:
    """The HTP backend's function table, with errors turned into `QnnError`."""

    def __init__(self, lib_dir: Path, log: Log) -> None:
        self.log = log
        #: Architecture of the device, None where the library did not tell.
        self.dsp_arch: str | None = None
        self._library = dlopen(lib_dir / library.HTP)
        self._functions = self._interface()
        self._logger = ctypes.c_void_p()
        self.call(
            "logCreate",
            ctypes.cast(log.callback, ctypes.c_void_p),
            abi.enum("LogLevel")["ERROR"],
            ctypes.byref(self._logger),
            what="cannot create the QNN logger",
        )

    def _interface(self) -> Any:
        """Pick the provider with a core API that the layouts fit."""
        get = self._library.QnnInterface_getProviders
        interface = abi.ctype("QnnInterface_t")
        providers = ctypes.POINTER(ctypes.POINTER(interface))()
        count = ctypes.c_uint32()
        if get(ctypes.byref(providers), ctypes.byref(count)) == 0:
            major, minor = abi.constant("core_api_major"), abi.constant("core_api_minor_min")
            for index in range(count.value):
                found = providers[index].contents
                version = found.apiVersion.coreApiVersion
                if version.major == major and version.minor >= minor:
                    return found.v2_27
        raise ToolMissing(
            f"{library.HTP} has no interface of core API {abi.constant('core_api_major')}."
            f"{abi.constant('core_api_minor_min')} or newer",
            todo="install a newer onnxruntime-qnn",
        )

    def function(self, name: str) -> Callable[..., int]:
        """The library's function ``name`` (a field of the interface table)."""
        found: Callable[..., int] = abi.prototype(name)(getattr(self._functions, name))
        return found

    def call(
        self,
        name: str,
        *arguments: Any,
        what: str,
        where: str | None = None,
        todo: str | None = None,
    ) -> None:
        """Call ``name``; anything but success is an error.

        Raises:
            QnnError: ``what`` with the library's error number, text and last lines.
        """
        code = self.function(name)(*arguments)
        if code != 0:
            raise QnnError(
                what,
                where=where,
                why=f"{name} returned {code & 0xFFFF}: {self.message(code)}",
                todo=todo,
                tail=self.log.tail(),
            )

    def message(self, code: int) -> str:
        """The library's own text for an error number."""
        text = ctypes.c_char_p()
        known = self.function("errorGetMessage")(code, ctypes.byref(text)) == 0 and text.value
        return text.value.decode("utf-8", "replace") if known and text.value else "no text"

    def build_id(self) -> str:
        """``backendGetBuildId``, such as ``v2.51.0.260...``."""
        text = ctypes.c_char_p()
        self.call("backendGetBuildId", ctypes.byref(text), what="the library has no build id")
        return (text.value or b"").decode("utf-8", "replace")

    def backend(self) -> ctypes.c_void_p:
        """Create the backend."""
        handle = ctypes.c_void_p()
        self.call(
            "backendCreate",
            self._logger,
            None,
            ctypes.byref(handle),
            what="cannot create the HTP backend",
        )
        return handle

    def device(self, options: TargetOptions) -> ctypes.c_void_p:
        """Create the device of ``options.soc_id``; the library derives the architecture.

        An empty ``options.dsp_arch`` is content with any.

        Raises:
            QnnError: a chip that this library does not know, or another architecture
                than ``options.dsp_arch``.
        """
        # The only place where the library tells the architecture is a warning.
        self._set_log_level("WARN")
        self.log.quiet = True
        handle = self._create_device(options)
        self.log.quiet = False
        self._set_log_level("ERROR")
        found = [match for line in self.log.lines if (match := _ARCH.search(line))]
        self.log.clear()
        self.dsp_arch = f"v{found[-1].group(1)}" if found else None
        if options.dsp_arch and self.dsp_arch not in (None, options.dsp_arch):
            raise QnnError(
                f"soc_id {options.soc_id} is {self.dsp_arch}, not {options.dsp_arch}",
                why="the QNN library says which architecture the chip has",
                todo=f"set dsp_arch to {self.dsp_arch}, or name another chip",
            )
        return handle

    def _set_log_level(self, level: str) -> None:
        self.function("logSetLogLevel")(self._logger, abi.enum("LogLevel")[level])

    def _create_device(self, options: TargetOptions) -> ctypes.c_void_p:
        settings = abi.ctype("QnnHtpDevice_CustomConfig_t")()
        settings.option = abi.enum("HtpDeviceOption")["SOC"]
        settings.socModel = options.soc_id
        configs, keep = config_list([custom("QnnDevice_Config_t", settings)], "QnnDevice_Config_t")
        handle = ctypes.c_void_p()
        self.call(
            "deviceCreate",
            self._logger,
            configs,
            ctypes.byref(handle),
            what=f"the QNN library does not accept soc_id {options.soc_id}",
            todo="name a chip that it knows, or install a newer onnxruntime-qnn",
        )
        del keep
        return handle

    def context(
        self, backend: ctypes.c_void_p, device: ctypes.c_void_p, options: TargetOptions
    ) -> ctypes.c_void_p:
        """Create a context; weight sharing is a property of the context."""
        settings = abi.ctype("QnnHtpContext_CustomConfig_t")()
        settings.option = abi.enum("HtpContextOption")["WEIGHT_SHARING_ENABLED"]
        settings.weightSharingEnabled = options.weight_sharing
        configs, keep = config_list(
            [custom("QnnContext_Config_t", settings)], "QnnContext_Config_t"
        )
        handle = ctypes.c_void_p()
        self.call(
            "contextCreate",
            backend,
            device,
            configs,
            ctypes.byref(handle),
            what="cannot create the QNN context",
        )
        del keep
        return handle
