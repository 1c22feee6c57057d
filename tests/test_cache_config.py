"""Settings of the cache: the pipeline's, and the environment's, which win."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnnqnn_tasks.cache.config import CacheSettings, cache_settings
from mnnqnn_tasks.errors import CacheError

HOME = {"HOME": "/home/u"}


def test_defaults() -> None:
    expected = CacheSettings(Path("/home/u/.cache/mnnqnn"), 20_000_000_000, None, False, True)
    assert cache_settings({}, HOME) == expected
    assert cache_settings({}, {**HOME, "XDG_CACHE_HOME": "/x"}).dir == Path("/x/mnnqnn")
    assert cache_settings({}, {**HOME, "XDG_CACHE_HOME": "x"}) == expected
    assert cache_settings({}, {**HOME, "MNNQNN_CACHE_DIR": ""}) == expected


def test_the_environment_wins() -> None:
    said = {
        "dir": "/a",
        "max_size": "1.5 TiB",
        "remote": "s3://bucket/x",
        "read_only": True,
        "enabled": False,
        "timeout_s": 2.5,
    }
    assert cache_settings(said, HOME) == CacheSettings(
        Path("/a"), 3 * 2**39, "s3://bucket/x", True, False, 2.5
    )
    environ = {
        "MNNQNN_CACHE": "on",
        "MNNQNN_CACHE_DIR": "/b",
        "MNNQNN_CACHE_REMOTE": "https://h/c",
        "MNNQNN_CACHE_READ_ONLY": "No",
        "MNNQNN_CACHE_MAX_SIZE": "700MB",
        "MNNQNN_CACHE_TIMEOUT_S": "60",
    }
    assert cache_settings(said, environ) == CacheSettings(
        Path("/b"), 700_000_000, "https://h/c", False, True, 60
    )
    off = {"MNNQNN_CACHE_DIR": "off", "MNNQNN_CACHE_REMOTE": "off", "MNNQNN_CACHE": "off"}
    assert cache_settings(said, off) == CacheSettings(None, 3 * 2**39, None, True, False, 2.5)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("12 kB", 12_000), ("3KiB", 3072), ("0.5GB", 500_000_000), ("2 T", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert cache_settings({"max_size": text}, HOME).max_bytes == size


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MNNQNN_CACHE", "maybe"),
        ("MNNQNN_CACHE_READ_ONLY", "2"),
        ("MNNQNN_CACHE_TIMEOUT_S", "0"),
        ("MNNQNN_CACHE_TIMEOUT_S", "nan"),
        ("MNNQNN_CACHE_TIMEOUT_S", "10 s"),
        ("MNNQNN_CACHE_REMOTE", "/mnt/cache"),
        *(("MNNQNN_CACHE_MAX_SIZE", v) for v in ("0", "-1", "x", "1 XB", "GB", "1e3", "1 GB x")),
    ],
)
def test_a_setting_that_is_none_is_named(variable: str, value: str) -> None:
    with pytest.raises(CacheError) as caught:
        cache_settings({}, {**HOME, variable: value})
    assert caught.value.where == variable and value in caught.value.what and caught.value.todo
