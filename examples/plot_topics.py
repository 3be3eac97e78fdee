"""
Topics of text: MALDA
=====================

From lines of text to topics, and to pictures of them. The text comes with the package:
queries to an assistant, each of which has one of 150 intents. Here they are put into
sessions, and :class:`~dask_ma.MALDA` finds out from the words of the sessions what they
are about.
"""

# %%
# A single query is too short for a topic model. A session is five queries about one of
# six subjects, each of which has four intents.
import dask.bag as db
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.feature_extraction.text import CountVectorizer

from dask_ma import MALDA
from dask_ma.datasets import load_clinc150, vectorize_text
from dask_ma.plotting import ConvergenceDisplay

SUBJECTS = {
    "travel": ["book_flight", "flight_status", "book_hotel", "lost_luggage"],
    "kitchen": ["recipe", "ingredients_list", "cook_time", "calories"],
    "car": ["tire_pressure", "oil_change_how", "jump_start", "gas"],
    "bank": ["report_fraud", "credit_score", "pin_change", "transfer"],
    "music": ["play_music", "update_playlist", "next_song", "what_song"],
    "work": ["pto_request", "pto_balance", "schedule_meeting", "payday"],
}
texts, labels = load_clinc150("train")
rng = np.random.default_rng(0)
sessions = []
for intents in SUBJECTS.values():
    rows = rng.permutation(np.flatnonzero(np.isin(labels, intents)))
    sessions += ["\n".join(texts[i] for i in five) for five in rows.reshape(-1, 5)]
sessions = [sessions[i] for i in rng.permutation(len(sessions))]
print(f"{len(sessions)} sessions, for example:\n\n{sessions[0]}")

# %%
# An in-process cluster of two workers stands in for a real one. ``vectorize_text`` has
# the workers count the words, with the settings of a scikit-learn vectorizer. Of the
# text, only the list of the different words comes to the client.
cluster = LocalCluster(
    n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
)
client = Client(cluster)

vectorizer = CountVectorizer(stop_words="english", min_df=3)
lines = db.from_sequence(sessions, npartitions=4)  # or dask.bag.read_text(...)
X, vocabulary = vectorize_text(lines, vectorizer)
X = client.persist(X)
X

# %%
# Eight topics, in case the six subjects leave something over. After every 240 sessions
# the topics of the two ranks are averaged; in between each rank updates its own by
# every 15 of its sessions.
lda = MALDA(
    n_components=8,
    doc_topic_prior=0.1,
    topic_word_prior=0.1,
    batch_size=240,
    local_batch_size=15,
    max_iter=20,
    evaluate_every=1,
    perp_tol=0,
    random_state=1,
)
lda.fit(X)
print(f"perplexity {lda.bound_:.1f} after {lda.n_iter_} passes")

# %%
# The most probable words of each topic. Most topics are one of the subjects. What is
# left over goes to the others: words that several subjects have in common, and chance.
figure, axes = plt.subplots(2, 4, figsize=(10, 5), sharex=True, layout="constrained")
topics = lda.top_words(8, vocabulary)
for number, (ax, topic) in enumerate(zip(axes.flat, topics, strict=True)):
    words, probabilities = zip(*topic, strict=True)
    ax.barh(words, probabilities, color=f"C{number}")
    ax.invert_yaxis()
    ax.set_title(f"topic {number}", fontsize="medium")
    ax.spines[["top", "right"]].set_visible(False)
figure.supxlabel("probability of the word in the topic", fontsize="medium")
plt.show()

# %%
# How the intents spread over the topics. The queries are those of the test part, and
# each row has all thirty of one intent. The model has seen neither the intents nor the
# subjects, only which queries come in one session.
test_texts, test_labels = load_clinc150("test")
intents = [intent for four in SUBJECTS.values() for intent in four]
by_intent = [
    " ".join(text for text, label in zip(test_texts, test_labels) if label == intent)
    for intent in intents
]
same_words = CountVectorizer(stop_words="english", vocabulary=vocabulary)
X_test = vectorize_text(by_intent, same_words).X
proportions = lda.transform(X_test)  # lazy for Dask input
proportions = proportions.compute()

# Topics in the order of the intents that they have most of.
order = np.argsort(np.arange(len(intents)) @ proportions / proportions.sum(axis=0))
figure, ax = plt.subplots(figsize=(7, 7), layout="constrained")
image = ax.imshow(proportions[:, order], cmap="Blues", vmin=0, vmax=1, aspect="auto")
ax.set_yticks(range(len(intents)), intents)
names = [f"{topics[i][0][0]}, {topics[i][1][0]}" for i in order]
ax.set_xticks(range(len(order)), names, rotation=40, ha="right")
ax.set_xlabel("topic, by its first two words")
for number, subject in enumerate(SUBJECTS):
    ax.axhline(4 * number - 0.5, color="grey", linewidth=0.8)
    ax.annotate(
        subject,
        (1.01, 4 * number + 1.5),
        xycoords=("axes fraction", "data"),
        rotation=-90,
        va="center",
    )
figure.colorbar(image, label="proportion of the topic", shrink=0.6, pad=0.06)
plt.show()

# %%
# How well the model predicts text that it has not seen: half of the words of each row
# from the other half.
perplexity = lda.perplexity(X_test, method="completion")
print(f"{perplexity:.0f}, and {len(vocabulary)} if all words were equally likely")

# %%
# Averaging topics against adding up gradients, the way of Spark's MLlib, with the same
# messages: ``evaluate_every=1`` has the perplexity of the training sessions evaluated
# after each pass, and the objective is its logarithm. Averaging needs a fraction of the
# rounds, since each rank makes eight updates in a round. On so few sessions its small
# batches also decide early what a topic is about, and the many large steps of the
# gradients end a little lower.
as_gradients = {"paradigm": "gradient", "local_batch_size": "auto"}
gradient = MALDA(**{**lda.get_params(), **as_gradients}).fit(X)
display = ConvergenceDisplay.from_estimators({"topics": lda, "gradients": gradient})
display.ax_.set_ylabel("logarithm of the perplexity")
plt.show()

# %%
# With `pyLDAvis <https://pyldavis.readthedocs.io>`_ installed, a fitted model becomes
# an interactive page: everything that it asks for is a plain array.
try:
    import pyLDAvis
except ImportError:
    print("pyLDAvis is not installed")
else:
    counts = X.compute()
    page = pyLDAvis.prepare(
        lda.components_ / lda.components_.sum(axis=1, keepdims=True),
        lda.transform(counts),
        np.ravel(counts.sum(axis=1)),
        vocabulary,
        np.ravel(counts.sum(axis=0)),
    )
    print(page.topic_info.head())  # pyLDAvis.save_html(page, "topics.html")

# %%
# The fitted model holds plain arrays and needs no cluster.
client.close()
cluster.close()
lda.to_sklearn()
