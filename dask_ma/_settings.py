"""Parameters of estimators: objects that hold some, and those without effect.

Ranks load this module, and nothing of scikit-learn with it.
"""

from __future__ import annotations

import inspect
import reprlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from dask_ma._ranges import check_ranges

_VARIABLE = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_Held = TypeVar("_Held")  # a kind of settings; or None, which some names stand for


class Settings:
    """Base of objects that are given for one parameter of an estimator.

    As an estimator of scikit-learn has it, the constructor only stores, `get_params`,
    `set_params` and `clone` work, and a search reaches what is inside by names such as
    ``communication__staleness``. A fit checks the object along with its estimator.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters of this object.

        Parameters
        ----------
        deep : bool, default=True
            Whether to give those of objects that it holds, too.

        Returns
        -------
        params : dict of str to object
            By name, in alphabetical order.
        """
        found: dict[str, Any] = {}
        cls: Any = type(self)
        declared = parameters_of(cls).items()
        for name in sorted(name for name, of in declared if of.kind not in _VARIABLE):
            value = getattr(self, name)
            if deep and has_parameters(value):
                inner = value.get_params().items()
                found |= {f"{name}__{each}": held for each, held in inner}
            found[name] = value
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters of this object, or of objects that it holds.

        Parameters
        ----------
        **params
            By name, as ``get_params`` gives them.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            For names of parameters that there are not.
        """
        known, inner = (
            self.get_params(deep=False),
            defaultdict[str, dict[str, Any]](dict),
        )
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. Valid "
                    f"parameters are: {list(known)}."
                )
            if rest:
                inner[name][rest] = value
            else:
                setattr(self, name, value)
        for name, chosen in inner.items():
            getattr(self, name).set_params(**chosen)
        return self

    def __repr__(self) -> str:
        shown = [
            f"{name}={value!r}"
            for name, value in self.get_params(deep=False).items()
            if is_set(self, name)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def check(self) -> None:
        """Refuse parameters that are out of their ranges.

        Raises
        ------
        ValueError
            With the name of the parameter, and of the class.
        """
        params = self.get_params(deep=False)
        check_ranges(self._parameter_constraints, params, type(self).__name__)


def has_parameters(value: Any) -> bool:
    """Whether an object is one of settings, or an estimator of scikit-learn."""
    # Others, as modules of users, may have methods of any name.
    bases = (f"{each.__module__}.{each.__qualname__}" for each in type(value).__mro__)
    return isinstance(value, Settings) or "sklearn.base.BaseEstimator" in bases


def plain(value: Any) -> Any:
    """A number of NumPy's, such as searches draw, as one of Python's; others as is.

    What a scheduler is told of a fit must be made of Python's.
    """
    return value.item() if isinstance(value, np.generic) else value


class Named(Generic[_Held]):
    """Range of a parameter that is an object of some classes, or the name of one.

    What :meth:`to_sklearn` gives goes into `_parameter_constraints`. Errors name the
    classes by where users find them.

    Parameters
    ----------
    parameter : str
        Its name.
    kinds : mapping of str to callable
        What makes the object that each name stands for, or None where that has no
        parameters.
    where : str
        The public module of the classes.
    """

    def __init__(
        self,
        parameter: str,
        kinds: Mapping[str, Callable[[], _Held]],
        where: str,
    ) -> None:
        self.options = set(kinds)
        self._parameter, self._kinds = parameter, kinds
        made = [make() for make in kinds.values()]
        self._types = tuple(dict.fromkeys(type(m) for m in made if m is not None))
        self._paths = [f"{where}.{kind.__name__}" for kind in self._types]

    def is_satisfied_by(self, value: Any) -> bool:
        """Whether a value is one of the names, or an object of one of the classes.

        Parameters
        ----------
        value : object

        Returns
        -------
        is_satisfied : bool
        """
        is_name = isinstance(value, str) and value in self.options
        return is_name or isinstance(value, self._types)

    def to_sklearn(self) -> Any:
        """The range as scikit-learn has it."""
        from dask_ma._sklearn import NamedRange

        return NamedRange(self)

    def __str__(self) -> str:
        names, paths = (", ".join(map(repr, of)) for of in (self._kinds, self._paths))
        return f"a str among {{{names}}} or an instance of {paths}"

    def as_object(self, value: Any) -> _Held:
        """The object that a name stands for; an object stands for itself.

        Parameters
        ----------
        value : str or Settings

        Returns
        -------
        settings : Settings or None
            None for a name without an object.

        Raises
        ------
        ValueError
            For another name, or another object.
        """
        if not self.is_satisfied_by(value):
            raise ValueError(f"{self._parameter} must be {self}, got {value!r}")
        made: _Held = self._kinds[value]() if isinstance(value, str) else value
        return made


class SettingsMixin:
    """Objects as parameters of an estimator; goes before its base.

    A name and an equal object are the same to ranks and checkpoints.
    """

    # What makes the object of what was given for a parameter, or None of what has none.
    _to_object: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @classmethod
    @cache  # a fit asks seven times, and each time the signature would be taken apart
    def _get_param_names(cls) -> list[str]:
        """Names of the parameters, in alphabetical order."""
        names: list[str] = super()._get_param_names()  # type: ignore[misc]
        return names

    def set_params(self, **params: Any) -> Self:
        """Set parameters of this estimator, or of objects that it holds.

        Parameters
        ----------
        **params
            By name, as ``get_params`` gives them. Where one of an object is set, such
            as ``communication__staleness``, and the estimator has a name, the object
            takes its place.

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            For names of parameters that there are not.
        """
        for name, to_object in self._to_object.items():
            if not any(key.startswith(f"{name}__") for key in params):
                continue
            given = params.get(name, getattr(self, name))
            params[name] = to_object(given)
            if params[name] is None:
                raise ValueError(f"{name}={given!r} has no parameters; give an object")
        super().set_params(**params)  # type: ignore[misc]
        return self

    def _objects(self) -> dict[str, Any]:
        """Parameters that are objects, or were given by the names of such."""
        made = {name: to(getattr(self, name)) for name, to in self._to_object.items()}
        return {name: each for name, each in made.items() if each is not None}


@cache
def parameters_of(cls: type) -> Mapping[str, inspect.Parameter]:
    """Parameters that a class is made with.

    Parameters
    ----------
    cls : type

    Returns
    -------
    parameters : mapping of str to inspect.Parameter
        In the order of the signature.
    """
    # Each fit asks for those of its estimator some twenty times.
    return inspect.signature(cls).parameters


def find_parameter(owner: Any, name: str) -> tuple[Any, inspect.Parameter] | None:
    """Value and declaration of a parameter, or of one of an object that it holds.

    Parameters
    ----------
    owner : estimator, or an object like one
    name : str
        As `set_params` knows it: "communication", or "communication__staleness".

    Returns
    -------
    found : tuple of (object, inspect.Parameter) or None
        None for what is not there, as where the object is given by its name.
    """
    outer, _, inner = name.partition("__")
    cls: Any = type(owner)
    declared = parameters_of(cls)
    if outer not in declared:
        return None
    value = getattr(owner, outer)
    if not inner:
        return value, declared[outer]
    return find_parameter(value, inner) if has_parameters(value) else None


class Inactive(NamedTuple):
    """Parameters that nothing looks at where others have certain values.

    Attributes
    ----------
    names : tuple of str
        The parameters; those of an object as ``communication__relay``.
    reason : callable
        ``reason(estimator)`` names the parameters whose values leave these without
        effect; nothing where they act.
    cure : str
        What to change for them to act.
    """

    names: tuple[str, ...]
    reason: Callable[[Any], tuple[str, ...]]
    cure: str


def unless(name: str, *values: Any) -> Callable[[Any], tuple[str, ...]]:
    """A reason: a parameter has none of the values with which the others act.

    Parameters
    ----------
    name : str
    *values : object

    Returns
    -------
    reason : callable
        As in :class:`Inactive`.
    """
    return lambda estimator: () if getattr(estimator, name) in values else (name,)


def check_inactive(
    estimator: Any, rules: Iterable[Inactive], peer: type, *, stacklevel: int
) -> None:
    """Refuse, or warn of, parameters that were set and cannot act.

    A parameter was set if it differs from its default. A search over parameters of
    scikit-learn has to go on as it does there, over ``penalty`` and ``l1_ratio`` for
    example: combinations that can be had there, too, are worth a warning.

    Parameters
    ----------
    estimator : estimator
        Each of its parameters is in its range.
    rules : iterable of Inactive
        Those that are not among the parameters of the estimator are passed over.
    peer : type
        scikit-learn's estimator of the same model.
    stacklevel : int
        Of the warnings, for the caller of this function.

    Raises
    ------
    ValueError
        It names the parameter, those that leave it without effect, and the cure.

    Warns
    -----
    UserWarning
        The same, where the peer has all of these parameters.
    """
    known = parameters_of(peer)
    for names, find_reason, cure in rules:
        if not any(is_set(estimator, name) for name in names):
            continue
        others = find_reason(estimator)
        for name in names:
            if not others or not is_set(estimator, name):
                continue
            reasons = " and ".join(_shown(estimator, other) for other in others)
            message = (
                f"{_shown(estimator, name)} has no effect with {reasons}; {cure}, or "
                f"leave {name} at its default, {_default(estimator, name)!r}"
            )
            if not {name, *others} <= set(known):
                raise ValueError(message)
            warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)


def is_set(estimator: Any, name: str) -> bool:
    """Whether a parameter differs from its default.

    Parameters
    ----------
    estimator : estimator
    name : str
        One that is not among its parameters has not been set.

    Returns
    -------
    is_set : bool
    """
    found = find_parameter(estimator, name)
    if found is None:
        return False
    value, default = found[0], found[1].default
    # Sequences may be of several types.
    is_equal = np.shape(value) == np.shape(default) and bool(
        np.all(np.asarray(value, dtype=object) == np.asarray(default, dtype=object))
    )
    return not is_equal


def _default(estimator: Any, name: str) -> Any:
    """Default of a parameter that has been found."""
    found = find_parameter(estimator, name)
    assert found is not None
    return found[1].default


def _shown(estimator: Any, name: str) -> str:
    """A parameter and its value; that of a network has many lines."""
    if (found := find_parameter(estimator, name)) is not None:
        value = found[0]
    elif "__" in name:  # one that an object has besides those it declares
        value = estimator.get_params()[name]
    else:  # what a rule looks at, and not every estimator that has the rule declares
        value = getattr(estimator, name, None)
    return f"{name}={reprlib.repr(value)}"
