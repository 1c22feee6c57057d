"""What the user is told about stores that do not work: once per run, or once per damage."""

from __future__ import annotations

from collections.abc import Callable

from mnnqnn_tasks.cache.once import Once
from mnnqnn_tasks.cache.remote import RemoteTrouble
from mnnqnn_tasks.errors import DiskError


class Reports:
    """Words for `Cache`, and the memory of what was said.

    Args:
        warn: told one line of text for the user.

    Attributes:
        say: ``warn``.
        full: claimed once the local store took something no more.
        off: claimed once the remote store did not work.
        damage: claimed once something in the local store was damaged.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.say = warn
        self.full = Once()
        self.off = Once()
        self.damage = Once()
        self._unreadable = Once()
        self._damaged: set[tuple[str, str]] = set()

    def cannot_read(self, store: str, error: OSError) -> None:
        """The local store cannot be read."""
        if self._unreadable.claim():
            self.say(f"the cache {store} cannot be read: {words(error)}")

    def cannot_write(self, store: str, error: DiskError) -> None:
        """The local store cannot be written, and is not any more."""
        if self.full.claim() and not self._unreadable.claimed:
            self.say(f"the cache {store} takes nothing more in: {words(error)}")

    def left_out(self, store: str, error: RemoteTrouble) -> None:
        """The remote store does not work, and is not asked any more."""
        if self.off.claim():
            self.say(f"the remote cache {store} is left out: {error}")

    def damaged(self, store: str, digest: str, what: str, *, deleted: bool, stays: bool) -> None:
        """An entry or a content is not what it should be.

        Args:
            deleted: this process has deleted it, so nobody else tells.
            stays: nobody can delete it, and this process may meet it again.
        """
        if deleted or (stays and (store, digest) not in self._damaged):
            self.say(f"the {store} was damaged, {what}")
        if stays:
            self._damaged.add((store, digest))


def words(error: OSError | DiskError) -> str:
    """Why, without where."""
    if isinstance(error, DiskError):
        return error.why or error.what
    return error.strerror or str(error)
