"""
A rotation program of your own
==============================

Where a model is too large for a worker, or copies of it would be out of date, a
:class:`~dask_ma.schmp.RotationProgram` cuts it into blocks that travel from rank to
rank while the data stay. This one factorizes a matrix by plain stochastic gradients
with a constant step, as in figure 6 of the paper on STRADS, and is compared with ranks
that all have a copy of the items and add up what they have found.
"""

# %%
# Ratings
# -------
#
# Each row belongs to a user: its number, and the ratings of all items, 0 for none.

import matplotlib.pyplot as plt
import numpy as np

from dask_ma.schmp import RotationProgram, run, schedules

N_USERS, N_ITEMS, K, N_RANKS = 160, 40, 4, 8
STEP, PENALTY, N_ROUNDS = 0.12, 0.02, 12
rng = np.random.default_rng(0)
truth = rng.normal(size=(N_USERS, K)) @ rng.normal(size=(K, N_ITEMS))
ratings = truth * (rng.random(truth.shape) < 0.4)
rows = np.column_stack([np.arange(N_USERS), ratings])

# %%
# The program
# -----------
#
# Parameters are the users, and behind them the items. Each rank has two blocks: the
# users of its rows, which stay, and some of the items, which travel. A rank works on
# the block of items that has come, with its own users, and sends it on. As no two ranks
# ever have the same user or the same item, each step finds what all steps before it
# have left, as on one rank.


def steps(left, right, table, order):
    """Stochastic gradients, one rating after the other; their squared errors."""
    loss = 0.0
    for user, item in order:
        error = table[user, item] - left[user] @ right[item]
        up = error * right[item] - PENALTY * left[user]
        right[item] += STEP * (error * left[user] - PENALTY * right[item])
        left[user] += STEP * up
        loss += error**2
    return loss


class Factors(RotationProgram):
    rotation = schedules.Rotation(blocks_per_rank=1)

    def prepare(self, shard, group):
        own = np.vstack([block.X for block in shard.blocks])
        return {"users": own[:, 0].astype(int), "ratings": own[:, 1:]}

    def weights(self, local):
        rated = local["ratings"] != 0
        work = np.zeros(N_USERS + N_ITEMS)
        work[local["users"]] = rated.sum(axis=1)
        work[N_USERS:] = rated.sum(axis=0)
        return work

    def blocks(self, work, n_ranks):
        users = np.array_split(np.arange(N_USERS), n_ranks)
        items = self.rotation.blocks(work[N_USERS:], n_ranks)
        return [[own, some + N_USERS] for own, [some] in zip(users, items, strict=True)]

    def initial_block(self, parameters, local, rng):
        return {"factors": 0.3 * rng.normal(size=(len(parameters), K))}

    def initial_shared(self, local, group):
        return {"loss": np.zeros(())}

    def schedule(self, request):
        # Blocks are numbered rank by rank: the even ones are users, and stay.
        return [[b for b in own if b % 2] for own in self.rotation(request)]

    def update(self, block, local, shared, turn):
        users = turn.home[0]
        assert np.array_equal(users.parameters, local["users"])
        table = local["ratings"][:, block.parameters - N_USERS]
        order = turn.rng.permutation(np.argwhere(table))
        left, right = users.values["factors"], block.values["factors"]
        return {"loss": steps(left, right, table, order)}

    def aggregate(self, change, shared):
        return {"loss": change["loss"]}  # that of this rotation alone

    def report(self, sums, shared):
        return {"objective": float(shared["loss"]) / np.count_nonzero(ratings)}


# %%
# Eight ranks make other steps first than one does, and come to the same.

curves = {}
for n_ranks in (1, N_RANKS):
    result = run(
        Factors(), rows, n_iterations=N_ROUNDS, n_ranks=n_ranks, random_state=0
    )
    found = [record["objective"] for record in result.history]
    curves[f"rotation, {n_ranks} rank" + "s" * (n_ranks > 1)] = found

# %%
# Copies that are added up
# ------------------------
#
# The same steps where each rank has a copy of all items, and all add up what they have
# changed when a quarter of the ratings has been gone over: data parallelism. What moves
# an item is now added up to eight times from the same point, and no longer safe.

start = np.random.default_rng(1)
left, right = (
    0.3 * start.normal(size=(N_USERS, K)),
    0.3 * start.normal(size=(N_ITEMS, K)),
)
shares = np.array_split(np.arange(N_USERS), N_RANKS)
found = []
with np.errstate(over="ignore", invalid="ignore"):
    for _ in range(N_ROUNDS):
        loss = 0.0
        order = start.permutation(np.argwhere(ratings))
        for quarter in np.array_split(order, 4):
            change = np.zeros_like(right)
            for users in shares:
                copy = right.copy()
                own = quarter[np.isin(quarter[:, 0], users)]
                loss += steps(left, copy, ratings, own)
                change += copy - right
            right += change
        found.append(loss / np.count_nonzero(ratings))
curves[f"copies, {N_RANKS} ranks"] = found

# %%

figure, ax = plt.subplots()
for name, values in curves.items():
    ax.plot(np.arange(1, N_ROUNDS + 1), values, marker="o", label=name)
    print(f"{name}: mean squared error {values[-1]:.3g}")
ax.set_yscale("log")
ax.set_ylim(1e-3, 1e3)
ax.set_xlabel("passes over the ratings")
ax.set_ylabel("mean squared error")
ax.legend()

plt.show()
