"""The end that asks: hands stages to a Dask scheduler and waits for them."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
import uuid
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from mnnqnn_tasks.cache.once import Once
from mnnqnn_tasks.cluster import request as said
from mnnqnn_tasks.cluster.identity import differences, identity
from mnnqnn_tasks.cluster.parcel import Parcel
from mnnqnn_tasks.cluster.request import Answer, Request
from mnnqnn_tasks.errors import ClusterError, NativeCrash
from mnnqnn_tasks.toolchain.work import Work

#: Seconds after which a scheduler that does not answer is given up.
CONNECT_SECONDS = 10.0

#: Seconds without any Dask worker after which the user is told, and the work is given up.
_LONELY_SECONDS, _ALONE_SECONDS = 20.0, 600.0

#: Seconds that a file may take to be seen here after it was made there.
_SEEN_SECONDS = 60.0


def prepare() -> None:
    """Load what a connection needs, and look at what is installed: once, before forking."""
    import dask

    # Whatever the client has to say becomes an error of ours; read when it is imported.
    dask.config.set({"logging": dict.fromkeys(("distributed", "distributed.client"), "critical")})
    import distributed  # noqa: F401

    identity()


#: What a worker evaluates.  Named by text, and given bytes: the scheduler needs no mnnqnn to
#: understand it, and a worker without one can say so.
_CALL = "__import__('mnnqnn_tasks.cluster.worker').cluster.worker.run_remote(payload)"


class Courier(Protocol):
    """Brings a stage's inputs to workers that do not see our files, and the result back."""

    def pack(self) -> Parcel:
        """Put the inputs into a store."""

    def send_again(self, parcel: Parcel, digests: Iterable[str]) -> None:
        """Put those there that were not found."""

    def unpack(self, kept: said.Kept) -> Work | None:
        """Put the result in place; ``None`` if not all of it comes out of the store."""


class RemoteError(Exception):
    """An exception at the other end that nobody foresaw."""


class Scheduler:
    """A scheduler at ``address``, for this process and those that are forked from it.

    Each process has a connection of its own, made when it is first used.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._owner: int | None = None
        self._client: Any = None
        self._unreachable = Once()
        self._lonely = Once()
        self._apart = Once()  # there are workers that do not see our files

    def run(
        self,
        stage: str,
        arguments: Mapping[str, Any],
        probes: Mapping[str, str | None],
        courier: Courier | None = None,
    ) -> Work:
        """Have a stage done by a Dask worker.

        One that is lost costs another try, and so does each kind of trouble with the store
        of a parcel: it was busy, or something in it was damaged and is mended.

        Args:
            probes: files that a worker sees if it sees ours, see `Request`.
            courier: for workers that do not.  They are found out by asking; from then on
                a parcel goes along, and a worker that needs none leaves it.

        Raises:
            MnnqnnError: what the stage raised.
            ClusterError: no scheduler, no worker, or one that cannot do it.
            NativeCrash: the stage brought several workers down.
            MemoryError, RemoteError: as at the other end.
        """
        parcel = courier.pack() if courier is not None and self._apart.claimed else None
        met: set[type[Answer]] = set()
        while True:
            answer, worker = self._ask(Request(stage, arguments, identity(), probes, parcel))
            if isinstance(answer, said.Done):
                _wait_for(answer.sizes)
                return answer.work
            if isinstance(answer, said.Kept) and courier is not None:
                work = courier.unpack(answer)
                if work is not None:
                    return work
            if courier is None or type(answer) in met:
                raise _error(answer, worker)
            met.add(type(answer))
            if isinstance(answer, said.Unshared):
                self._apart.claim()
                parcel = courier.pack()
            elif isinstance(answer, said.Lacking) and parcel is not None:
                courier.send_again(parcel, answer.digests)
            elif not isinstance(answer, said.Kept | said.NoStore):
                raise _error(answer, worker)

    def _ask(self, request: Request) -> tuple[Answer, str]:
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        client = self._connected()
        key = f"{request.stage}-{uuid.uuid4().hex}"
        names = {"payload": pickle.dumps(request)}
        future = client.submit(eval, _CALL, names, key=key, pure=False)
        try:
            answer: tuple[Answer, str] = pickle.loads(self._wait(client, future))
            return answer
        except KilledWorker as error:
            raise NativeCrash(
                f"every Dask worker that did the stage {request.stage} died",
                where=error.last_worker.address,
                why="killed by a signal, most often because memory ran out, or lost",
                todo="give the workers more memory or fewer threads each, then run again",
            ) from error
        except (CancelledError, CommClosedError, OSError) as error:
            raise ClusterError(
                "the connection to the Dask scheduler was lost",
                where=self.address,
                todo="look at the scheduler, then run again; what was built is kept",
            ) from error
        except (ImportError, AttributeError) as error:
            raise ClusterError(
                "the Dask workers have no mnnqnn, or one that cannot do this",
                where=self.address,
                why=str(error),
                todo=f"install there what is here: mnnqnn {identity()['mnnqnn']}",
            ) from error
        finally:
            with contextlib.suppress(Exception):  # also when a signal ends the wait
                future.cancel(msg="the run does not need it any more")

    def _wait(self, client: Any, future: Any) -> bytes:
        """Wait for a task, but not for ever without a worker."""
        since = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                answer: bytes = future.result(timeout=_LONELY_SECONDS)
                return answer
            if client.nthreads():
                since = time.monotonic()
            elif time.monotonic() - since > _ALONE_SECONDS:
                raise ClusterError(
                    f"there was no Dask worker for {_ALONE_SECONDS:g} s",
                    where=self.address,
                    todo="start workers: dask worker " + self.address,
                )
            elif self._lonely.claim():
                sys.stderr.write(
                    f"WARNING: {self.address}: there is no Dask worker; waiting for one\n"
                )

    def _connected(self) -> Any:
        if self._owner != os.getpid():  # a forked client has no threads
            if self._unreachable.claimed:
                raise self._no_answer()
            self._client = self._connect()
            self._owner = os.getpid()
        return self._client

    def _connect(self) -> Any:
        from multiprocessing.util import Finalize

        from distributed import Client
        from distributed.versions import VersionMismatchWarning

        warnings.simplefilter("ignore", VersionMismatchWarning)
        try:
            client = Client(self.address, timeout=_patience(), set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            self._unreachable.claim()
            raise self._no_answer() from error
        # doit's workers end without Python's own exit hooks; these they do call.
        Finalize(None, self.close, exitpriority=1)
        return client

    def close(self) -> None:
        """End the connection of this process, if it has one."""
        if self._owner == os.getpid():
            self._owner = None
            with contextlib.suppress(Exception):
                self._client.close(timeout=2)

    def _no_answer(self) -> ClusterError:
        return ClusterError(
            "the Dask scheduler does not answer",
            where=self.address,
            why=f"no connection within {_patience():g} s",
            todo="start it, or correct 'scheduler' in the pipeline; or executor: local",
        )


def _patience() -> float:
    """Seconds that a scheduler may take to answer: what Dask is set to, and not too long."""
    import dask
    from dask.utils import parse_timedelta

    setting = dask.config.get("distributed.comm.timeouts.connect", CONNECT_SECONDS)
    return min(CONNECT_SECONDS, float(parse_timedelta(setting)))


def _error(answer: Answer, worker: str) -> Exception:
    """What a user is told of an answer that is no result."""
    if isinstance(answer, said.Failed):
        return answer.error
    if isinstance(answer, said.NoMemory):
        return MemoryError()
    if isinstance(answer, said.Differs):
        return ClusterError(
            "a Dask worker is not the same program as this one",
            where=worker,
            why="; ".join(differences(identity(), dict(answer.identity))),
            todo="install the same versions at both ends, then start the worker again",
        )
    if isinstance(answer, said.Unshared):
        return ClusterError(
            "a Dask worker does not see the files of this machine",
            where=worker,
            why=f"{answer.path} is not there, or another file",
            todo="put the model and build folders on a file system that all workers have, "
            "under the same path; or name a remote cache that all can write to, and none that "
            "is read-only or left out: cache.remote",
        )
    if isinstance(answer, said.NoStore):
        return ClusterError(
            "a Dask worker cannot use the remote cache or its own disk",
            where=worker,
            why=answer.why,
            todo="make it work there (room, packages; credentials and endpoint are those of its "
            "own environment), or let it see the build folder",
        )
    if isinstance(answer, said.Lacking):
        return ClusterError(
            "a Dask worker does not find in the remote cache what was put there",
            where=worker,
            why=f"content {answer.digests[0][:12]} is missing or damaged",
            todo="look at the store, and whether the worker's is the same one; then run again",
        )
    if isinstance(answer, said.Kept):
        return ClusterError(
            "what a Dask worker made does not come out of the remote cache",
            where=worker,
            why=f"the result {answer.entry.key[:12]} ({answer.entry.action}) is not whole",
            todo="see the warnings; run again when the store works",
        )
    if isinstance(answer, said.Unforeseen):
        error = RemoteError(f"{answer.text} (on the Dask worker {worker})")
        error.add_note(answer.traceback)
        return error
    return RemoteError(f"{answer!r} (from the Dask worker {worker})")


def _wait_for(sizes: Mapping[str, int]) -> None:
    """Wait until files are seen that another machine made: NFS remembers what is not there.

    Raises:
        ClusterError: they do not come.
    """
    deadline = time.monotonic() + _SEEN_SECONDS
    for path, size in sizes.items():
        while not _has_size(path, size):
            if time.monotonic() > deadline:
                raise ClusterError(
                    "a file that a Dask worker made is not seen here",
                    where=path,
                    why=f"no file of {size} bytes within {_SEEN_SECONDS:g} s",
                    todo="look at the file system that is shared, then run again",
                )
            time.sleep(0.1)


def _has_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False
