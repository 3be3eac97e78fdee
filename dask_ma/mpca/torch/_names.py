"""Classes of torch that users may give by their names."""

from __future__ import annotations

from typing import Any


def is_auto(value: Any) -> bool:
    """Whether a choice is left to the task.

    Parameters
    ----------
    value : object
    """
    return isinstance(value, str) and value == "auto"


def find_class(value: Any, namespace: Any, parameter: str, where: str) -> Any:
    """The class that a name stands for; anything else as it is.

    Parameters
    ----------
    value : str or object
    namespace : module
        Where names are looked up.
    parameter, where : str
        For the message: what was given, and the public name of the module.

    Raises
    ------
    ValueError
        For a name that stands for no class there.
    """
    if not isinstance(value, str):
        return value
    found = getattr(namespace, value, None)
    if not isinstance(found, type):
        raise ValueError(f"{parameter}={value!r} is no class in {where}")
    return found
