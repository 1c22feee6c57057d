"""command doit cache - look after the stores of results"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.cache.config import CacheSettings, cache_settings
from mnnqnn_tasks.errors import CacheError, MnnqnnError
from mnnqnn_tasks.files import canonical_json
from mnnqnn_tasks.spec.check import nearest
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.actions import internal_error
from mnnqnn_tasks.tasks.anywhere import TaskCommand

if TYPE_CHECKING:
    from mnnqnn_tasks.cache.local import LocalStore
    from mnnqnn_tasks.cache.remote import RemoteStore
    from mnnqnn_tasks.cache.transfer import Transfer

_MAX_SIZE = {
    "name": "max_size",
    "long": "max-size",
    "type": str,
    "default": "",
    "help": "gc: what to leave at most, for instance 5 GB [default: the pipeline's max_size]",
}
_JSON = {
    "name": "as_json",
    "long": "json",
    "type": bool,
    "default": False,
    "help": "stats: print JSON",
}

#: A line for the user.
_Say = Callable[[str], None]


class CacheCommand(TaskCommand):
    """Runs one action on the caches of the loaded pipelines."""

    name = "cache"
    takes_tasks = False  # what stands on the command line is an action
    doc_purpose = "look after the cache of results"
    doc_usage = "stats | gc | verify | push | pull"
    doc_description = (
        "stats says what the local store holds; gc makes it as small as max_size; verify reads "
        "everything and deletes what is damaged; push and pull copy results to the remote store "
        "and from it."
    )
    cmd_options = (_MAX_SIZE, _JSON)

    def _execute(self, max_size: str, as_json: bool, pos_args: list[str]) -> int:
        if len(pos_args) != 1 or pos_args[0] not in _ACTIONS:
            raise InvalidCommand(_no_action(pos_args))
        action = _ACTIONS[pos_args[0]]
        worst = 0
        for settings in _caches(max_size):
            try:
                worst = max(worst, action(settings, as_json, self.say))
            except MnnqnnError as error:
                sys.stderr.write(f"ERROR: {error}\n")
                worst = 3
            except Exception as error:
                sys.stderr.write(f"ERROR: {internal_error(error)}\n")
                worst = 3
        return worst


def _no_action(given: list[str]) -> str:
    what = "one action is needed" if len(given) != 1 else f"there is no action {given[0]!r}"
    near = nearest(given[0], _ACTIONS) if len(given) == 1 else None
    question = f"did you mean {near}? " if near else ""
    return f"{what}\n  to do: {question}doit cache {'|'.join(_ACTIONS)}"


def _caches(max_size: str) -> list[CacheSettings]:
    """The settings of all pipelines, each once.

    Raises:
        InvalidCommand: one of them is wrong.
    """
    pipelines = {job.pipeline.file: job.pipeline for job in session.current().every_job()}
    try:
        found = [cache_settings(pipeline.cache) for pipeline in pipelines.values()]
        if max_size:
            size = cache_settings({"max_size": max_size}, {}).max_bytes
            found = [replace(one, max_bytes=size) for one in found]
    except MnnqnnError as error:
        raise InvalidCommand(str(error)) from None
    return list(dict.fromkeys(found))


def _local(settings: CacheSettings) -> LocalStore:
    from mnnqnn_tasks.cache.local import LocalStore

    if settings.dir is None:
        raise CacheError("there is no local store", todo="set cache.dir or MNNQNN_CACHE_DIR")
    return LocalStore(settings.dir, settings.max_bytes)


def _remote(settings: CacheSettings) -> RemoteStore:
    from mnnqnn_tasks.cache.remote import RemoteStore

    remote = RemoteStore.of(settings)
    if remote is None:
        raise CacheError("there is no remote store", todo="set cache.remote or MNNQNN_CACHE_REMOTE")
    return remote


def _stats(settings: CacheSettings, as_json: bool, say: _Say) -> int:
    from mnnqnn_tasks.cache import upkeep

    store = _local(settings)
    stats = upkeep.stats(store)
    if as_json:
        about: dict[str, Any] = {"dir": str(store.root), "max_bytes": store.max_bytes}
        about |= {"enabled": settings.enabled, "remote": settings.remote}
        say(canonical_json(about | asdict(stats)))
        return 0
    off = "" if settings.enabled else ", not in use"
    say(f"{store.root}: {_size(stats.bytes)} of {_size(store.max_bytes)}{off}")
    say(f"  {stats.entries} results, {stats.contents} different files")
    for name, kind in stats.kinds.items():
        say(f"  {name}: {kind.entries}, {_size(kind.bytes)}, took {kind.seconds:.1f} s")
    if stats.entries:
        say(f"  the least recently used one was of use {stats.oldest / 86400:.1f} days ago")
    if settings.remote is not None:
        say(f"remote: {_remote(settings).name}{', read-only' if settings.read_only else ''}")
    return 0


def _gc(settings: CacheSettings, as_json: bool, say: _Say) -> int:
    from mnnqnn_tasks.cache import upkeep

    store = _local(settings)
    done = upkeep.gc(store)
    say(
        f"{store.root}: deleted {done.entries} results and {done.contents} files, "
        f"{_size(done.freed)}; {_size(done.left)} are left"
    )
    return 0


def _verify(settings: CacheSettings, as_json: bool, say: _Say) -> int:
    from mnnqnn_tasks.cache import upkeep

    store = _local(settings)
    found = upkeep.verify(store)
    for line in found.damaged:
        say(f"deleted {line}")
    if found.incomplete:
        say(f"deleted {found.incomplete} results that had lost a file")
    say(f"{store.root}: {found.entries} results are sound, {_size(found.bytes)}")
    return 1 if found.damaged else 0


def _push(settings: CacheSettings, as_json: bool, say: _Say) -> int:
    from mnnqnn_tasks.cache import transfer

    local, remote = _local(settings), _remote(settings)
    return _moved(transfer.push(local, remote), f"pushed to {remote.name}", say)


def _pull(settings: CacheSettings, as_json: bool, say: _Say) -> int:
    from mnnqnn_tasks.cache import transfer

    local, remote = _local(settings), _remote(settings)
    return _moved(transfer.pull(local, remote), f"pulled from {remote.name}", say)


def _moved(done: Transfer, what: str, say: _Say) -> int:
    for line in done.left_out:
        say(f"left out {line}")
    say(f"{what}: {done.entries} results, {_size(done.bytes)}; {done.known} were there")
    return 0


def _size(count: int) -> str:
    """In the largest unit that leaves a number of one to four digits."""
    step = min(max(len(str(count)) - 1, 0) // 3, len(_UNITS) - 1)
    return f"{count / 1000**step:.1f} {_UNITS[step]}" if step else f"{count} B"


_UNITS = ("B", "kB", "MB", "GB")

_ACTIONS: dict[str, Callable[[CacheSettings, bool, _Say], int]] = {
    "stats": _stats,
    "gc": _gc,
    "verify": _verify,
    "push": _push,
    "pull": _pull,
}
