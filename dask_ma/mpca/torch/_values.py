"""The values of a torch module as one flat tensor."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def value_tensors(module: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors of a module that make up its vector, in order.

    Parameters
    ----------
    module : nn.Module
        Its parameters and floating-point buffers must be of float32.

    Returns
    -------
    trained : list of Tensor
        Parameters with `requires_grad`. One that several layers share comes once.
    kept : list of Tensor
        What follows in the vector: the other parameters, then the buffers. What is not
        floating-point is left out: it stays with each copy of the module.
    """
    parameters = list(module.parameters())
    trained = [tensor for tensor in parameters if tensor.requires_grad]
    frozen = [tensor for tensor in parameters if not tensor.requires_grad]
    kept = [*frozen, *module.buffers()]
    return trained, [tensor for tensor in kept if tensor.is_floating_point()]


@torch.no_grad()
def fill(module: nn.Module, vector: np.ndarray) -> None:
    """Copy the values of a vector into a module's own tensors.

    Parameters
    ----------
    module : nn.Module
        It changes.
    vector : ndarray of shape (n_values,)
        As :meth:`Values.read` gives it.

    Raises
    ------
    ValueError
        If the vector is not that of such a module.
    """
    trained, kept = value_tensors(module)
    tensors = trained + kept
    sizes = [tensor.numel() for tensor in tensors]
    if vector.shape != (sum(sizes),):
        raise ValueError(
            f"{type(module).__name__} has {sum(sizes)} values, "
            f"the vector has shape {vector.shape}"
        )
    parts = torch.tensor(vector, dtype=torch.float32).split(sizes)
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


class Values:
    """The values of a module, moved into one flat tensor that the module then uses.

    Parameters
    ----------
    module : nn.Module
        On its device; in float32. Its tensors become views.
    device : torch.device
        Where the module is.

    Attributes
    ----------
    trained : list of Tensor
        Parameters with `requires_grad`.
    flat : Tensor of shape (n_values,)
        All values, the trained ones first.
    gradient : Tensor of shape (n_parameters,)
        Gradients of the trained parameters, whose `grad` are views of it.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.trained, kept = value_tensors(module)
        tensors = self.trained + kept
        sizes = [tensor.numel() for tensor in tensors]
        self.flat = torch.empty(sum(sizes), dtype=torch.float32, device=device)
        for tensor, part in zip(tensors, self.flat.split(sizes), strict=True):
            view = part.view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
        self.gradient = torch.zeros(
            sum(sizes[: len(self.trained)]), dtype=torch.float32, device=device
        )
        parts = self.gradient.split(sizes[: len(self.trained)])
        for tensor, part in zip(self.trained, parts, strict=True):
            tensor.grad = part.view(tensor.shape)
        self._buffers = _buffers(module)
        self._host = host_copy(self.flat)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copy of the values from `start` to `stop`."""
        return self.to_numpy(self.flat, start, stop).copy()

    def write(self, start: int, values: np.ndarray) -> None:
        """Replace the values from `start` on."""
        self.from_numpy(self.flat, start, values)

    def to_numpy(self, tensor: torch.Tensor, start: int, stop: int) -> np.ndarray:
        """Part of a tensor no longer than `flat`, as it is until the next call."""
        if self._host is None:
            return tensor[start:stop].numpy()
        part = self._host[start:stop]
        part.copy_(tensor[start:stop])
        return part.numpy()

    def from_numpy(self, tensor: torch.Tensor, start: int, values: np.ndarray) -> None:
        """Replace part of a tensor no longer than `flat`."""
        stop = start + len(values)
        if self._host is None:
            tensor.numpy()[start:stop] = values
            return
        self._host.numpy()[start:stop] = values
        tensor[start:stop].copy_(self._host[start:stop])

    @torch.no_grad()
    def take_in_buffers(self) -> None:
        """Bring buffers home that `forward` has replaced instead of changing them."""
        for owner, name, home in self._buffers:
            found = getattr(owner, name)
            if found is not home:
                home.copy_(found)
                setattr(owner, name, home)


def host_copy(flat: torch.Tensor) -> torch.Tensor | None:
    """Memory through which values come and go; None where NumPy can see them."""
    if flat.device.type == "cpu":
        return None
    # Pinned: a GPU copies to and from such memory without help of the processor.
    pinned = flat.device.type == "cuda"
    return torch.empty(flat.shape, dtype=flat.dtype, pin_memory=pinned)


def _buffers(module: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Who owns which floating-point buffer, under what name."""
    return [
        (owner, name, buffer)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
        if buffer.is_floating_point()
    ]


class JointModel:
    """What proximal terms draw values towards, and where it is known.

    Parameters
    ----------
    values : Values
        What is drawn there.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._joint: torch.Tensor | None = None
        self._known: list[tuple[int, int]] = []  # in order, none touching the next

    def set_anchor(self, start: int, values: np.ndarray) -> None:
        """Set the joint model from `start` on."""
        if self._joint is None:
            self._joint = torch.zeros_like(self._values.flat)
        self._values.from_numpy(self._joint, start, values)
        self._known = _joined([*self._known, (start, start + len(values))])

    def between(self, start: int, stop: int) -> list[tuple[slice, torch.Tensor]]:
        """Values of the joint model, wherever it is known.

        Parameters
        ----------
        start, stop : int
            Part of the vector; only parameters count.

        Returns
        -------
        values : list of (slice, Tensor)
        """
        stop = min(stop, len(self._values.gradient))
        parts = [(max(a, start), min(b, stop)) for a, b in self._known]
        drawn = [slice(a, b) for a, b in parts if a < b]
        if self._joint is None:
            return []
        return [(part, self._joint[part]) for part in drawn]


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same positions in as few spans as there can be."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined
