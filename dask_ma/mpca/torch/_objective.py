"""Losses and predictions from a module's output, by a torch criterion."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from dask_ma.mpca.torch._names import find_class, is_auto

_ONE_UNIT = (nn.BCEWithLogitsLoss, nn.BCELoss)
_BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss)


class Objective:
    """A criterion, with the targets and the outputs that belong to it.

    Parameters
    ----------
    criterion : callable
        From output and target to the loss. For a classifier the target is the class
        code of each row, but for BCEWithLogitsLoss and BCELoss 0.0 or 1.0 in the shape
        of the output; for a regressor, and for labels in several columns, the target in
        the shape of the output. One that is no class of torch may get more than a
        tensor, of which the first is what is predicted, and in a regression outputs of
        any shape; where they have other numbers of values, targets stay as they are.
    n_classes : int or None
        Number of classes; None for regression.
    device : torch.device
        Where the outputs are.
    n_targets : int or None, default=None
        Columns of y; None for a y of one dimension.
    target_shape : tuple of int or None, default=None
        Shape of a row of y, and of outputs, where it is not that of the columns.
    n_codes : int or None, default=None
        Classes of which y holds a number in each place, where the output has as many
        values for each; None if y holds none.

    Raises
    ------
    ValueError
        If the criterion tells two classes apart, and there are more.
    """

    def __init__(
        self,
        criterion: Any,
        n_classes: int | None,
        device: torch.device,
        n_targets: int | None = None,
        target_shape: tuple[int, ...] | None = None,
        n_codes: int | None = None,
    ) -> None:
        self._name = getattr(criterion, "__name__", type(criterion).__name__)
        self._criterion = criterion
        self._n_classes = n_classes
        self._device = device
        self._n_targets = n_targets
        self._target_shape = target_shape
        self._n_codes = n_codes
        self._has_codes = n_targets is None or n_codes is not None
        kind = criterion if isinstance(criterion, FunctionType) else type(criterion)
        self._is_own = not kind.__module__.startswith("torch.")
        if isinstance(criterion, nn.Module):
            # A copy, as ranks in threads share what they were given.
            self._criterion = copy.deepcopy(criterion).float().to(device)
        has_classes = n_classes is not None and n_targets is None
        self._has_one_unit = has_classes and isinstance(criterion, _ONE_UNIT)
        if self._has_one_unit and n_classes != 2:
            raise ValueError(
                f"labels out of range for the criterion: {self._name} tells two "
                f"classes apart, and there are {n_classes}; use CrossEntropyLoss"
            )

    @property
    def log_loss(self) -> str | None:
        """As a :class:`Network` has it."""
        criterion, has_labels = self._criterion, self._n_targets is not None
        known = _ONE_UNIT if self._has_one_unit or has_labels else _BY_CLASS
        if not isinstance(criterion, known) or self._n_codes is not None:
            return None
        weights = (getattr(criterion, name, None) for name in ("weight", "pos_weight"))
        is_plain = all(weight is None for weight in weights)
        is_plain &= getattr(criterion, "label_smoothing", 0.0) == 0
        return "mean" if is_plain and criterion.reduction == "mean" else None

    @property
    def squared_error(self) -> float:
        """As a :class:`Network` has it."""
        criterion = self._criterion
        if isinstance(criterion, nn.MSELoss) and criterion.reduction == "mean":
            return 1.0
        return 0.0

    def loss(
        self, output: Any, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> torch.Tensor:
        """Loss of a batch.

        Parameters
        ----------
        output : Tensor of shape (n_rows,) or (n_rows, n_units)
            What the module returned.
        y : ndarray of shape (n_rows,) or (n_rows, n_targets)
            Class codes or targets.
        sample_weight : ndarray of shape (n_rows,) or None
            Weights of the rows. What the criterion weighs by itself counts on top.

        Returns
        -------
        loss : Tensor of shape ()
            As the criterion reduces it; a criterion that does not reduce is averaged.

        Raises
        ------
        ValueError
            If the output has another shape, or if there are weights and the criterion
            has no `reduction="none"`.
        """
        self.check(output, len(y))
        target = self._target(output, y)
        if sample_weight is None:
            return self._criterion(output, target).mean()
        weight = self._send(sample_weight, torch.float32)
        return self._weighted(output, target, weight)

    def shares(
        self, y: np.ndarray, sample_weight: np.ndarray | None, parts: list[slice]
    ) -> list[float]:
        """By what the losses of parts of a batch add up to the loss of the batch.

        Parameters
        ----------
        y, sample_weight
            Of the whole batch, as for :meth:`loss`.
        parts : list of slice
            Rows of each part.

        Returns
        -------
        shares : list of float
            1 for each where the criterion sums up.
        """
        if getattr(self._criterion, "reduction", "mean") == "sum":
            return [1.0] * len(parts)
        counts = np.ones(len(y))
        if sample_weight is not None:
            counts = sample_weight.astype(np.float64)
        sizes = np.array([self._size(y[part], counts[part]) for part in parts])
        return (sizes / (sizes.sum() or 1.0)).tolist()

    def weight(self, y: np.ndarray, sample_weight: np.ndarray | None) -> float:
        """Of a batch, among those of other ranks.

        Parameters
        ----------
        y, sample_weight
            As for :meth:`loss`.

        Returns
        -------
        weight : float
            What the mean over the batch divides by; 1 where the criterion sums up.
        """
        if getattr(self._criterion, "reduction", "mean") == "sum":
            return 1.0
        counts = np.ones(len(y)) if sample_weight is None else sample_weight
        return self._size(y, counts.astype(np.float64))

    def _size(self, y: np.ndarray, counts: np.ndarray) -> float:
        """What the mean over some rows divides by."""
        if not isinstance(self._criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            return float(counts.sum())
        if self._n_classes is None or not self._has_codes:
            return float(counts.sum())
        codes = torch.as_tensor(y.astype(np.int64), device=self._device)
        each = self._class_weights(codes).double().reshape(len(y), -1).mean(1)
        return float(counts @ each.cpu().numpy())

    def check(self, output: Any, n_rows: int) -> None:
        """Raise a ValueError unless an output has the shape that the task asks for."""
        main = self._main(output)
        found = tuple(main.shape) if torch.is_tensor(main) else None
        expected: list[tuple[int, ...]]
        if self._n_targets is not None:
            codes = () if self._n_codes is None else (self._n_codes,)
            places = self._target_shape or (self._n_targets,)
            expected = [(n_rows, *codes, *places)]
        elif self._n_classes is None or self._has_one_unit:
            expected = [(n_rows,), (n_rows, 1)]
        else:
            expected = [(n_rows, self._n_classes)]
        is_free = self._is_own and self._n_classes is None
        if found is None or found[:1] != (n_rows,):
            is_free = False
        elif main is output:  # fewer values than targets would be repeated
            is_free &= np.prod(found) >= min(np.prod(shape) for shape in expected)
        if found in expected or is_free:
            return
        wanted = " or ".join(map(str, expected))
        if found is None:
            raise ValueError(
                f"the module returned a {type(output).__name__}, where a tensor of "
                f"shape {wanted} is needed"
            )
        reason = cure = ""
        if self._n_classes is not None and self._n_targets is None:
            reason = (
                f"labels out of range for the criterion {self._name} with "
                f"{self._n_classes} classes: "
            )
            if len(found) == 2 and found[0] == n_rows and found[1] > self._n_classes:
                reason = (
                    f"the module has {found[1]} outputs for each row, expected "
                    f"{self._n_classes}, one for each class of y: "
                )
            if self._n_classes == 2 and found in [(n_rows,), (n_rows, 1)]:
                reason = f"the criterion {self._name} needs an output for each class: "
                cure = (
                    "; for one output that tells two classes apart set "
                    'Torch(module, criterion="BCEWithLogitsLoss"), or "BCELoss" if it '
                    "ends with a sigmoid"
                )
        raise ValueError(
            f"{reason}the module's output has shape {found}, not {wanted}{cure}"
        )

    def outputs(self, output: Any) -> torch.Tensor:
        """What :meth:`Network.outputs` returns for what the module returned."""
        output = self._main(output)
        n_values = len(output) * (self._n_targets or 1)
        if self._n_classes is None and output.numel() != n_values:
            raise ValueError(
                "the module gives values of another shape than y, which "
                "early_stopping=True cannot score; give it a function "
                "score(estimator, X, y)"
            )
        if self._n_codes is not None:
            return output.argmax(1).reshape(len(output), -1)
        if self._n_targets is not None:
            output = output.reshape(len(output), -1)
            is_probability = self._n_classes and isinstance(self._criterion, nn.BCELoss)
            return output - 0.5 if is_probability else output
        if self._n_classes is None:
            return output.reshape(-1)
        if isinstance(self._criterion, nn.BCELoss):
            return output.reshape(-1) - 0.5
        return output.reshape(-1) if self._has_one_unit else output

    def predictions(self, output: Any) -> torch.Tensor:
        """What :meth:`NetworkSpec.forward` returns for what the module returned.

        Scores of a criterion that is not known become probabilities by a softmax, which
        keeps their order.
        """
        output = self._main(output)
        if self._n_codes is not None:
            is_log = isinstance(self._criterion, nn.NLLLoss)
            return output.exp() if is_log else output.softmax(1)
        if self._n_targets is not None:
            if self._n_classes and isinstance(self._criterion, nn.CrossEntropyLoss):
                return output.softmax(1)
            is_logit = self._n_classes and not isinstance(self._criterion, nn.BCELoss)
            return output.sigmoid() if is_logit else output
        if self._n_classes is None:
            return output.reshape(-1) if output.numel() == len(output) else output
        if isinstance(self._criterion, nn.NLLLoss):
            return output.exp()
        if not self._has_one_unit:
            return output.softmax(1)
        output = output.reshape(-1)
        second = output if isinstance(self._criterion, nn.BCELoss) else output.sigmoid()
        return torch.stack([1 - second, second], dim=1)

    def _main(self, output: Any) -> Any:
        """What is predicted, of what the module returned."""
        if self._is_own and isinstance(output, tuple | list) and len(output):
            return output[0]
        return output

    def _target(self, output: Any, y: np.ndarray) -> torch.Tensor:
        """Targets as the criterion gets them."""
        main = self._main(output)
        is_float = self._n_classes is None or not self._has_codes
        if is_float or self._has_one_unit:
            target = self._send(y, torch.float32)
            if main is output and target.numel() == output.numel():
                return target.reshape(output.shape)
            shape = (
                target.shape[1:] if self._target_shape is None else self._target_shape
            )
            return target.reshape(len(y), *shape)
        codes = self._send(y, torch.int64)
        if self._n_codes is None:
            return codes
        return codes.reshape(len(main), *main.shape[2:])

    def _send(self, values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        """A copy of an array on the device."""
        sent = torch.tensor(values, dtype=dtype)
        if self._device.type == "cuda":
            # From other memory, a copy begins only once all kernels before it are done.
            sent = sent.pin_memory()
        return sent.to(self._device, non_blocking=True)

    def _weighted(
        self, output: Any, target: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """Loss of weighted rows, reduced as the criterion reduces others."""
        if not hasattr(self._criterion, "reduction"):
            raise ValueError(
                f"the criterion {self._name} has no `reduction`, which sample weights "
                "need: weights count the loss of each row; give an nn.Module with an "
                "attribute `reduction` that returns these losses where it is 'none', "
                "as those of torch do"
            )
        each = copy.copy(self._criterion)
        each.reduction = "none"
        losses = each(output, target)
        if losses.shape[:1] != weight.shape:
            raise ValueError(
                f"the criterion {self._name} does not return a loss for each row with "
                "`reduction='none'`, which sample weights need: it returned shape "
                f"{tuple(losses.shape)} for {len(weight)} rows"
            )
        losses = losses.reshape(len(weight), -1)
        if self._criterion.reduction == "sum":
            return weight @ (losses.mean(1) if self._n_codes is None else losses.sum(1))
        total = weight @ losses.mean(1)
        if torch.is_floating_point(target):
            scale = weight.sum()
        else:
            counts = self._class_weights(target).reshape(len(weight), -1)
            scale = weight @ counts.mean(1)
        # Rows that do not count at all neither move the network nor spoil its values.
        return total / torch.where(scale == 0, 1.0, scale)

    def _class_weights(self, codes: torch.Tensor) -> torch.Tensor:
        """What the criterion's own mean divides by, place by place."""
        ones = torch.ones(codes.shape, device=codes.device)
        if not isinstance(self._criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            return ones
        counts = codes != self._criterion.ignore_index
        weight = self._criterion.weight
        of_class = ones if weight is None else weight[torch.where(counts, codes, 0)]
        return torch.where(counts, of_class, 0.0)


def make_criterion(
    chosen: Any,
    params: Mapping[str, Any] | None,
    n_classes: int | None,
    *,
    has_labels: bool,
) -> Any:
    """What tells the loss, of what a user has chosen.

    Parameters
    ----------
    chosen : type, callable or str
        A name in `torch.nn` stands for the class, "auto" for that of the task.
    params : mapping or None
        Arguments of the class.
    n_classes : int or None
        Number of classes; None for regression.
    has_labels : bool
        Whether y tells with several columns which labels a row has.

    Returns
    -------
    criterion : callable

    Raises
    ------
    TypeError
        If it is neither a class nor callable.
    ValueError
        For an unknown name, and for arguments without a class.
    """
    default = "MSELoss" if n_classes is None else "CrossEntropyLoss"
    if n_classes is not None and has_labels:
        default = "BCEWithLogitsLoss"
    name = default if is_auto(chosen) else chosen
    found = find_class(name, nn, "criterion", "torch.nn")
    if isinstance(found, type):
        return found(**(params or {}))
    if params:
        raise ValueError("criterion_params need a class, not an instance")
    if not callable(found):
        raise TypeError(f"criterion={found!r} is neither a class nor callable")
    return found
