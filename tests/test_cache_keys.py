from __future__ import annotations

import pytest

from mnnqnn_tasks.cache.keys import action_key


def test_the_key_depends_on_the_values_alone() -> None:
    key = action_key("link/1", {"a": 1, "b": ["x", {"c": 2.5, "d": None}]})
    assert key == action_key("link/1", {"b": ["x", {"d": None, "c": 2.5}], "a": 1})
    assert len(key) == 64
    others = [
        action_key("link/2", {"a": 1, "b": ["x", {"c": 2.5, "d": None}]}),
        action_key("link/1", {"a": 1, "b": ["x", {"c": 2.5}]}),
        action_key("link/1", {"a": True, "b": ["x", {"c": 2.5, "d": None}]}),
        action_key("link/1", {"a": "1", "b": ["x", {"c": 2.5, "d": None}]}),
    ]
    assert len({key, *others}) == 5


def test_what_is_no_json_value_has_no_key() -> None:
    with pytest.raises(ValueError):
        action_key("x", {"a": float("nan")})
    with pytest.raises(TypeError):
        action_key("x", {"a": object()})
