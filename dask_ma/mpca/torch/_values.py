"""The values of a torch module as one flat tensor."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from dask_ma.mpca.torch._placement import Placement

# Values in 16 bytes, which kernels of GPUs may read at once: some of them end with an
# error where a tensor begins anywhere else.
_ALIGNMENT = 4


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
    alignment : int or None, default=None
        The module's tensors begin at multiples of it in the flat one; None for 1 on a
        processor and what a device can read at once elsewhere.

    Attributes
    ----------
    trained : list of Tensor
        Parameters with `requires_grad`.
    n_values : int
        Length of the vector: all values, the trained ones first.
    n_parameters : int
        How many of them are trained.
    flat : Tensor of shape (>= n_values,)
        The vector; between tensors there may be gaps, of zeros.
    gradient : Tensor of shape (>= n_parameters,)
        Gradients of the trained parameters, with the same gaps, after
        :meth:`begin_gradient`.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, alignment: int | None = None
    ) -> None:
        if alignment is None:
            alignment = 1 if device.type == "cpu" else _ALIGNMENT
        self.trained, kept = value_tensors(module)
        tensors = self.trained + kept
        sizes = [tensor.numel() for tensor in tensors]
        n_trained = len(self.trained)
        self._placement = placement = Placement(sizes, alignment)
        self.n_values, self.n_parameters = sum(sizes), sum(sizes[:n_trained])
        self.flat = torch.zeros(placement.length, dtype=torch.float32, device=device)
        places = list(zip(tensors, placement.starts, strict=True))
        for tensor, start in places:
            view = self.flat[start : start + tensor.numel()].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
        self.gradient = torch.zeros_like(self.flat[self.around(0, self.n_parameters)])
        self._parts = [
            self.gradient[start : start + tensor.numel()].view(tensor.shape)
            for tensor, start in places[:n_trained]
        ]
        self._buffers = _buffers(module)
        self._host = None
        if device.type != "cpu" or alignment > 1:
            self._host = host_memory(self.n_values, device)

    def begin_gradient(self, *, flat: bool) -> None:
        """Forget the last gradient.

        Parameters
        ----------
        flat : bool
            Whether the next one is to come to :attr:`gradient`, whose views become the
            `grad` of the parameters. Else these have none, and take what comes instead
            of adding it up, a kernel less for each.
        """
        if flat:
            self.gradient.zero_()
            self.take_gradient()
            return
        for tensor in self.trained:
            tensor.grad = None

    def take_gradient(self) -> None:
        """Make the values of :attr:`gradient` the `grad` of the parameters."""
        for tensor, part in zip(self.trained, self._parts, strict=True):
            tensor.grad = part

    def complete_gradient(self) -> None:
        """Have a dense gradient of each parameter, of zeros if it had no part."""
        for tensor in self.trained:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            elif tensor.grad.is_sparse:  # which few optimisers take
                tensor.grad = tensor.grad.to_dense()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copy of the values from `start` to `stop`."""
        return self.to_numpy(self.flat, start, stop).copy()

    def write(self, start: int, values: np.ndarray) -> None:
        """Replace the values from `start` on."""
        self.from_numpy(self.flat, start, values)

    def around(self, start: int, stop: int) -> slice:
        """Where the values from `start` to `stop` lie in `flat`, with gaps between."""
        return self._placement.around(start, stop)

    def to_numpy(self, tensor: torch.Tensor, start: int, stop: int) -> np.ndarray:
        """Values in a tensor like `flat` or `gradient`, as it is until the next call.

        Parameters
        ----------
        tensor : Tensor
            With the gaps of `flat`, as far as it goes.
        start, stop : int
            Part of the vector.

        Returns
        -------
        values : ndarray of shape (stop - start,)
            Memory of the tensor, or memory that the next call writes to.
        """
        if self._host is None:
            return tensor[start:stop].numpy()
        part = self._host[start:stop]
        runs = [tensor[run.tensor] for run in self._placement.between(start, stop)]
        if runs:  # brought together on the device: a copy from there takes its time
            part.copy_(runs[0] if len(runs) == 1 else torch.cat(runs))
        return part.numpy()

    def from_numpy(self, tensor: torch.Tensor, start: int, values: np.ndarray) -> None:
        """Replace values in a tensor like `flat` or `gradient`, from `start` on."""
        stop = start + len(values)
        if self._host is None:
            tensor.numpy()[start:stop] = values
            return
        self._host.numpy()[start:stop] = values
        runs = self._placement.between(start, stop)
        staged = self._host[start:stop]
        if len(runs) > 1:
            staged = staged.to(tensor.device)
        for run in runs:
            tensor[run.tensor].copy_(staged[run.vector])

    @torch.no_grad()
    def take_in_buffers(self) -> None:
        """Bring buffers home that `forward` has replaced instead of changing them."""
        for owner, name, home in self._buffers:
            found = getattr(owner, name)
            if found is not home:
                home.copy_(found)
                setattr(owner, name, home)


def host_memory(n_values: int, device: torch.device) -> torch.Tensor:
    """Memory of the processor through which values come from a device and go there."""
    # Pinned: a GPU copies to and from such memory without help of the processor.
    pinned = device.type == "cuda"
    return torch.empty(n_values, dtype=torch.float32, pin_memory=pinned)


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
            Where they lie in `flat` and in `gradient`, gaps of zeros included.
        """
        stop = min(stop, self._values.n_parameters)
        parts = [(max(a, start), min(b, stop)) for a, b in self._known]
        drawn = [self._values.around(a, b) for a, b in parts if a < b]
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
