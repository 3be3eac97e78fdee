"""Several dictionaries in one, under prefixes."""

from __future__ import annotations

from typing import Any


def prefixed(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values under longer names."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def part_of(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values that :func:`prefixed` has given these names."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): value
        for name, value in values.items()
        if name.startswith(start)
    }
