"""How the protocols of remote stores differ: what they need, and what they can do."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mnnqnn_tasks.errors import ToolMissing

#: Bytes of a piece of an upload.
PIECE = 8 << 20


@dataclass(frozen=True)
class Protocol:
    """How a protocol differs from others.

    Attributes:
        module: what it needs beside fsspec; also the name of the distribution.
        extra: our extra that installs it.
        writable: it can write and list.
        whole: a file that is written appears when it is whole.
        mounted: transfers tell no progress.
        upload, download: arguments that make transfers go piece by piece.
    """

    module: str = "fsspec"
    extra: str = "remote"
    writable: bool = True
    whole: bool = False
    mounted: bool = False
    upload: Mapping[str, int] = field(default_factory=dict)
    download: Mapping[str, int] = field(default_factory=dict)


S3 = Protocol(
    "s3fs",
    "s3",
    whole=True,
    upload={"chunksize": PIECE, "max_concurrency": 1},
    download={"max_concurrency": 1},
)
GS = Protocol("gcsfs", "gs", whole=True, upload={"chunksize": PIECE})
HTTP = Protocol("aiohttp", writable=False)
MOUNTED = Protocol(mounted=True)

PROTOCOLS = {
    "s3": S3,
    "s3a": S3,
    "gs": GS,
    "gcs": GS,
    "http": HTTP,
    "https": HTTP,
    "file": MOUNTED,
    "local": MOUNTED,
}


def require(scheme: str, protocol: Protocol) -> None:
    """See that the packages of a protocol are installed; they are not imported.

    Raises:
        ToolMissing: one is not.
    """
    for module, extra in (("fsspec", "remote"), (protocol.module, protocol.extra)):
        if importlib.util.find_spec(module) is None:
            raise ToolMissing(
                f"the wheel {module} is not installed",
                why=f"the remote cache at {scheme}:// needs it",
                todo=f"python -m pip install 'mnnqnn[{extra}]', or leave the remote cache out",
            )


def library_options(protocol: Protocol, timeout: float) -> Iterator[tuple[str, Any]]:
    """So that the libraries give up as well, and their threads end."""
    if protocol is S3:
        patience = {"connect_timeout": timeout, "read_timeout": timeout}
        yield "config_kwargs", {**patience, "retries": {"max_attempts": 1}}
    if protocol is HTTP:
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        yield "client_kwargs", {"timeout": limits}
