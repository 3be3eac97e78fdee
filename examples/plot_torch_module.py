"""
A module of PyTorch: MPCAClassifier
===================================

:class:`~dask_ma.MPCAClassifier` trains a module of PyTorch on all ranks.
:class:`~dask_ma.mpca.Torch` says how: it has the module, the loss and the optimiser,
and the arguments of each. The example needs PyTorch.
"""

# %%
# Images of digits, in the shape in which a convolution takes them: channels, height,
# width.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from dask_ma import MPCAClassifier
from dask_ma.mpca import Torch

X, y = load_digits(return_X_y=True)
images = X.reshape(-1, 1, 8, 8).astype(np.uint8)
train, test, y_train, y_test = train_test_split(images, y, random_state=0)


# %%
# A plain module. It gets the images in float32.
class Convolutions(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self, n_channels=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, n_channels, 3, padding=1),
            nn.BatchNorm2d(n_channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(n_channels, 2 * n_channels, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * n_channels * 16, 10),
        )

    def forward(self, X):
        return self.layers(X)


# %%
# The images are bytes, as in files: they are divided by 16 on the rank, once they are
# in a batch, and for a step moved about by a pixel at most.
def scaled(images):
    """Pixels from 0 to 1."""
    return images.float() / 16


def moved(images):
    """The same, shifted at random."""
    return torch.roll(scaled(images), torch.randint(-1, 2, (2,)).tolist(), dims=(2, 3))


# %%
# Two ranks, which are threads of this process; with a client there is a rank for each
# worker thread, and nothing else to change. The step size rises and falls once in the
# fit, biases have no weight decay, and steep gradients are clipped. An epoch is as many
# rows as there are, gone over by both ranks together. ``early_stopping`` holds rows out
# on each rank, and ends with the network that was best on them.
classifier = MPCAClassifier(
    module=Torch(
        Convolutions,
        module_params={"n_channels": 16},
        optimizer="AdamW",
        optimizer_params={
            "weight_decay": 1e-2,
            "param_groups": [("*.bias", {"weight_decay": 0.0})],
        },
        lr_scheduler="OneCycleLR",
        lr_scheduler_params={"max_lr": 0.01, "total_steps": "auto"},
        lr_scheduler_step="batch",
        clip_grad_norm=1.0,
        train_transform=moved,
        eval_transform=scaled,
    ),
    batch_size=32,
    max_iter=15,
    early_stopping=True,
    tol=None,
    n_ranks=2,
    random_state=0,
)
classifier.fit(train, y_train)
print(f"{classifier.score(test, y_test):.3f} on the test images")

# %%
# Loss by epoch, and what the network takes the first images for.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot(range(1, len(classifier.loss_curve_) + 1), classifier.loss_curve_, ".-")
left.set(xlabel="epoch", ylabel="loss")
right.imshow(np.hstack(test[:8, 0]), cmap="gray_r")
right.set(title="  ".join(str(label) for label in classifier.predict(test[:8])))
right.axis("off")
plt.show()

# %%
# The result is a plain module, for use without this library and without a cluster.
network = classifier.to_module()
with torch.no_grad():
    print(network(scaled(torch.from_numpy(test[:8]))).argmax(dim=1).tolist())
