"""
Topics by Gibbs sampling
========================

A small world of texts whose topics are known: each is a bar in a picture of five by
five words, and each text mixes a few bars. Gibbs sampling finds the bars again, on
three ranks past whose texts the words travel in blocks.
"""

# %%
# Texts
# -----
#
# Ten topics, the five rows and the five columns of the picture, as in the experiment of
# Griffiths and Steyvers. A text has 100 tokens.

import matplotlib.pyplot as plt
import numpy as np

from dask_ma import MALDA, SchMPLDA

rng = np.random.default_rng(0)
bars = np.zeros((10, 5, 5))
for place in range(5):
    bars[place, place, :] = bars[5 + place, :, place] = 0.2
bars = bars.reshape(10, 25)
shares = rng.dirichlet(np.full(10, 0.2), size=300)
X = np.array([rng.multinomial(100, row) for row in shares @ bars])
train, test = X[:240], X[240:]

# %%
# A fit
# -----
#
# The likelihood is evaluated after each rotation, to see when the chain has found its
# level. ``keep_tokens=True`` has the topics of all tokens returned. A chain may stay
# where two bars are one topic and some other topic has nothing to do. The likelihood
# tells: of three fits the best is taken.

fits = [
    SchMPLDA(
        10,
        doc_topic_prior=0.2,
        topic_word_prior=0.05,
        max_iter=50,
        evaluate_every=1,
        keep_tokens=True,
        n_ranks=3,
        random_state=seed,
    ).fit(train)
    for seed in range(3)
]
print([round(fit.log_likelihood_, 3) for fit in fits])
lda = max(fits, key=lambda fit: fit.log_likelihood_)
likelihood = [record["log_likelihood"] for record in lda.history_[1:]]
changed = [record["changed"] for record in lda.history_[1:]]

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(range(1, 51), likelihood)
left.set(xlabel="rotations", ylabel="log likelihood per token")
right.plot(range(1, 51), changed)
right.set(xlabel="rotations", ylabel="tokens with another topic", ylim=(0, 1))
plt.show()

# %%
# The topics as pictures: bars.

figure, axes = plt.subplots(2, 5, figsize=(8, 3.4), layout="constrained")
for ax, topic in zip(axes.flat, lda.components_, strict=True):
    ax.imshow(topic.reshape(5, 5), cmap="Blues")
    ax.set_axis_off()
plt.show()

# %%
# Tokens, and new texts
# ---------------------
#
# Every token has a topic. Of the first text:

tokens = lda.token_topics_
first = tokens.topics[tokens.documents == 0]
print(np.bincount(first, minlength=10))
print(lda.doc_topic_[0].round(2))

# %%
# How well texts are predicted that the fit has not seen, by half of their words from
# the other half, and as a whole; beside variational inference.

variational = MALDA(10, doc_topic_prior=0.2, topic_word_prior=0.05, random_state=0)
variational.set_params(max_iter=50).fit(train)
print(f"SchMPLDA {lda.perplexity(test):.2f}")
print(f"MALDA    {variational.perplexity(test, method='completion'):.2f}")
print(f"as a whole {lda.perplexity(test, method='left-to-right'):.2f}")

# %%
# A guided topic
# --------------
#
# A larger prior for some words leads topic 0 to the middle column.

prior = np.full((10, 25), 0.05)
prior[0, 2::5] = 20
guided = SchMPLDA(
    10, doc_topic_prior=0.2, topic_word_prior=prior, max_iter=50, random_state=0
).fit(train)
figure, ax = plt.subplots(figsize=(2, 2), layout="constrained")
ax.imshow(guided.components_[0].reshape(5, 5), cmap="Blues")
ax.set_axis_off()
plt.show()
