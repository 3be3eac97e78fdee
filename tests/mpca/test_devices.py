"""Which rank gets which GPU, and how many threads it computes with."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch modules need torch")

from dask.distributed import Client, LocalCluster  # noqa: E402
from torch import nn  # noqa: E402

from dask_ma import MPCAClassifier  # noqa: E402
from dask_ma.mpca import Torch  # noqa: E402
from dask_ma.mpca.torch import _devices, _spec  # noqa: E402
from dask_ma.mpca.torch._devices import Sight, name_gpus, share_out  # noqa: E402

QUICK = {"max_iter": 1, "tol": None, "random_state": 0}
NO_GPU = Sight("here", ())


def sights(*gpus, host="here"):
    return [Sight(host, tuple(each)) for each in gpus]


# Who gets what ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(sights(["a", "b", "c"], ["a", "b", "c"]), [0, 1], id="all seen"),
        pytest.param(sights(["a"], ["b"], ["c"]), [0, 0, 0], id="one seen"),
        # As workers of dask-cuda see them: each begins with its own.
        pytest.param(
            sights(["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]),
            [0, 0, 0],
            id="turned",
        ),  # fmt: skip
        pytest.param(
            sights(["a", "b"], ["a", "b"]) + sights(["c", "d"], ["c", "d"], host="b"),
            [0, 1, 0, 1],
            id="two hosts",
        ),
        # The first one has to leave what the second one cannot do without.
        pytest.param(sights(["a", "b"], ["a"]), [1, 0], id="gives way"),
        pytest.param([*sights(["a"]), NO_GPU], [0, None], id="one sees none"),
        pytest.param([NO_GPU, NO_GPU], [None, None], id="none"),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(seen, expected):
    assert share_out(seen) == expected


def test_ranks_share_gpus_only_as_far_as_they_must():
    seen = sights(*[["a", "b", "c"]] * 5)
    numbers = share_out(seen, 2)
    assert sorted(numbers.count(gpu) for gpu in range(3)) == [1, 2, 2]
    assert sorted(share_out(sights(*[["a", "b", "c"]] * 3), 2)) == [0, 1, 2]
    assert share_out(sights(["a"], ["a"], ["b"]), 2) == [0, 0, 0]


@pytest.mark.parametrize(
    ("seen", "shared", "message"),
    [
        (
            sights(*[["a", "b"]] * 5),
            2,
            "5 ranks see 2 GPUs on here, and ranks_per_gpu=2: expected a GPU for each "
            r"rank; take n_ranks=4, .*Torch\(ranks_per_gpu=3\) or Torch\(dev",
        ),
        (sights(["a"], ["a"], ["b", "c"]), 1, r"3 ranks see 3 GPUs.*ranks_per_gpu=2\)"),
    ],
    ids=["too many", "too many of one"],
)
def test_too_many_ranks_are_refused(seen, shared, message):
    with pytest.raises(ValueError, match=message):
        share_out(seen, shared)


def test_a_rank_without_a_gpu_is_refused_where_one_is_wanted():
    with pytest.raises(ValueError, match=r"rank 1 of 2 sees none on here; .*dask-cuda"):
        share_out([*sights(["a"]), NO_GPU], needs_gpu=True)


@pytest.mark.parametrize(
    ("uuids", "visible", "expected"),
    [
        (["u1", "u2"], None, ("u1", "u2")),
        (["u2", "u1"], "1,0", ("u2", "u1")),
        (["u1"], "MIG-7", ("MIG-7",)),
        (["0", "1"], "3, 2", ("here/3", "here/2")),
        (["0", "1"], None, ("here/0", "here/1")),
    ],
)
def test_names_are_the_same_in_all_processes(uuids, visible, expected):
    assert name_gpus("here", uuids, visible) == expected


# In fits ------------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch):
    """Devices that ranks in threads train on; they stay on the processor."""
    found = []

    def find(device):
        found.append(str(device))
        return torch.device("cpu")

    monkeypatch.setattr(_spec, "find_device", find)
    monkeypatch.setattr(_spec, "look_around", lambda: Sight("here", ("a", "b")))
    return found


def fitted(problem, n_ranks, **params):
    network = Torch(nn.Linear(problem[0].shape[1], 4), **params)
    return MPCAClassifier(module=network, n_ranks=n_ranks, **QUICK).fit(*problem)


@pytest.mark.parametrize("device", ["auto", "cuda", torch.device("cuda")])
def test_ranks_of_a_fit_take_gpus_of_their_own(multi, taken, device):
    fitted(multi, 2, device=device)
    assert {"cuda:0", "cuda:1"} <= set(taken)


def test_more_ranks_than_gpus_are_refused_unless_they_are_wanted(multi, taken):
    with pytest.raises(ValueError, match=r"3 ranks see 2 GPUs on here.*n_ranks=2"):
        fitted(multi, 3)
    fitted(multi, 3, ranks_per_gpu=2)
    assert {"cuda:0", "cuda:1"} <= set(taken)
    taken.clear()
    fitted(multi, 3, device="cuda:1")
    assert set(taken) == {"cuda:1"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpus_of_this_host(multi):
    sight = _devices.look_around()
    n_gpus = torch.cuda.device_count()
    assert len(set(sight.gpus)) == n_gpus
    model = fitted(multi, n_gpus, device="cuda")
    assert next(model.to_module().parameters()).device.type == "cpu"
    with pytest.raises(ValueError, match=f"{n_gpus + 1} ranks see {n_gpus} GPUs"):
        fitted(multi, n_gpus + 1, device="cuda")
    shared = fitted(multi, n_gpus + 1, device="cuda", ranks_per_gpu=2)
    assert np.isfinite(shared.vector_).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(("precision", "atol"), [("float32", 1e-3), ("bf16", 0.05)])
def test_a_gpu_comes_to_the_network_of_the_processor(multi, precision, atol, prefetch):
    """One rank makes the same steps on the same batches, but for rounding."""
    common = {"optimizer": "SGD", "optimizer_params": {"lr": 0.1}}
    on_gpu = {"device": "cuda", "precision": precision, "prefetch": prefetch}
    first = nn.Linear(multi[0].shape[1], 4)
    before, plain, ours = (
        MPCAClassifier(module=Torch(first, **chosen), batch_size=32, n_ranks=1, **QUICK)
        .fit(*multi)
        .vector_
        for chosen in (
            {"device": "cpu", "optimizer": "SGD", "optimizer_params": {"lr": 1e-9}},
            {"device": "cpu", **common},
            {**on_gpu, **common},
        )
    )
    np.testing.assert_allclose(ours, plain, atol=atol)
    assert abs(plain - before).max() > 2 * atol


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_fp16_on_a_gpu_learns(multi, n_ranks):
    """Steps whose scaled gradients are too large for 16 bits are left out."""
    network = Torch(
        nn.Linear(multi[0].shape[1], 4),
        device="cuda:0",
        precision="fp16",
        clip_grad_norm=5.0,
    )
    params = {"n_ranks": n_ranks, "batch_size": 16, "learning_rate_init": 0.05}
    model = MPCAClassifier(module=network, **{**QUICK, **params, "max_iter": 20})
    model.fit(*multi)
    assert np.isfinite(model.vector_).all()
    assert model.loss_curve_[-1] < 0.7 * model.loss_curve_[0]


class Counting(nn.Module):
    """A network that knows with how many threads it was trained."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("n_threads", torch.zeros(()))

    def forward(self, X):
        if self.training:
            self.n_threads.fill_(torch.get_num_threads())
        return self.layer(X)


@pytest.mark.parametrize(("n_ranks", "expected"), [(1, 3), (2, 1), (3, 1)])
def test_ranks_compute_with_the_threads_of_their_worker(n_ranks, expected):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 6)).astype(np.float32), rng.integers(4, size=60)
    before = torch.get_num_threads()
    try:
        with (
            LocalCluster(
                n_workers=1, threads_per_worker=3, processes=False,
                dashboard_address=":0",
            ) as cluster,
            Client(cluster),
        ):  # fmt: skip
            network = Torch(Counting, device="cpu")
            model = MPCAClassifier(
                module=network, n_ranks=n_ranks, strategy="synchronous", **QUICK
            )
            found = model.fit(X, y).to_module().n_threads
    finally:
        torch.set_num_threads(before)
    assert found == expected


def test_ranks_in_threads_of_this_process_compute_with_one(multi):
    before = torch.get_num_threads()
    X, y = multi
    try:
        torch.set_num_threads(2)
        network = Torch(Counting, device="cpu")
        model = MPCAClassifier(module=network, n_ranks=2, **QUICK).fit(X[:, :6], y)
        assert model.to_module().n_threads == 1
    finally:
        torch.set_num_threads(before)
