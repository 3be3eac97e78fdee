"""The progress bar: what it shows, and where there is none."""

import io
import threading

import pytest

from dask_ma import MASGDClassifier, _progress

rich = pytest.importorskip("rich", reason="the progress bar needs rich")

PARAMS = {"max_iter": 5, "tol": None, "random_state": 0, "n_ranks": 2}
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor


class Terminal(io.StringIO):
    """Text that claims to be shown on a screen."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and the console that rich takes for the only one."""
    from rich.console import Console

    file = Terminal()
    console = Console(
        file=file, force_terminal=True, width=100, color_system=None, _environ={}
    )
    monkeypatch.setattr(rich, "get_console", lambda: console)
    return file


@pytest.fixture(params=["here", "inproc", "process"])
def place(request):
    """No client, in-process workers, worker processes."""
    if request.param == "here":
        yield
        return
    with request.getfixturevalue(f"{request.param}_client").as_current():
        yield


def last_frame(terminal):
    """What the bar shows last."""
    return terminal.getvalue().split("\x1b[2K")[-1].split("\n")[0]


def test_bar_of_a_fit(place, binary, terminal, capsys):
    model = MASGDClassifier(verbose=1, **PARAMS).fit(*binary)
    line = last_frame(terminal)
    assert line.startswith("MASGDClassifier ")
    assert "round 5/5" in line
    assert f"objective {model.history_[-1]['objective']:.5g}" in line
    assert "took " in line
    assert terminal.getvalue().count(HIDDEN) == terminal.getvalue().count(SHOWN) == 1
    assert capsys.readouterr().out == ""


def test_early_stopping_shows_the_score_and_an_upper_bound(binary, terminal):
    MASGDClassifier(verbose=1, early_stopping=True, random_state=0).fit(*binary)
    assert "left <" in terminal.getvalue()
    assert ", score " in last_frame(terminal)
    rounds = last_frame(terminal).partition("round ")[2].split()[0]
    n_rounds, total = rounds.split("/")
    assert n_rounds == total
    assert int(total) < 1000


def test_bar_is_closed_by_an_error(place, binary, terminal):
    X, y = binary
    model = MASGDClassifier(
        verbose=1, learning_rate="constant", eta0=1e300, loss="squared_error", **PARAMS
    )
    with pytest.raises(ValueError, match="overflow"):
        model.fit(X, y)
    assert terminal.getvalue().count(HIDDEN) == terminal.getvalue().count(SHOWN) == 1
    assert "took" not in terminal.getvalue()
    MASGDClassifier(verbose=1, **PARAMS).fit(X, y)
    assert "round 5/5" in last_frame(terminal)


def test_verbose_of_two_prints_lines(binary, terminal, capsys):
    MASGDClassifier(verbose=2, **PARAMS).fit(*binary)
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out.count("-- Round ") == 5


@pytest.mark.parametrize("why", ["no rich", "no terminal", "dumb", "bar"])
def test_lines_where_no_bar_can_be_drawn(binary, terminal, capsys, monkeypatch, why):
    from rich.errors import LiveError
    from rich.progress import Progress

    def refuse(self):
        raise LiveError("only one at a time")

    if why == "no rich":
        monkeypatch.setattr(_progress, "find_spec", lambda name: None)
    elif why == "no terminal":
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    elif why == "dumb":
        monkeypatch.setattr(type(rich.get_console()), "is_dumb_terminal", True)
    else:
        monkeypatch.setattr(Progress, "start", refuse)
    MASGDClassifier(verbose=1, **PARAMS).fit(*binary)
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out.count("-- Round ") == 5


@pytest.mark.parametrize("widgets", [False, True])
def test_notebook(monkeypatch, terminal, widgets):
    console = rich.get_console()
    monkeypatch.setattr(console, "is_jupyter", True)
    monkeypatch.setattr(_progress, "find_spec", {"ipywidgets": widgets or None}.get)
    assert _progress._can_draw(console) is widgets


def test_lines_in_other_threads(binary, terminal, capsys):
    model = MASGDClassifier(verbose=1, **PARAMS)
    thread = threading.Thread(target=model.fit, args=binary)
    thread.start()
    thread.join()
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out.count("-- Round ") == 5


def test_fit_in_a_task(inproc_client, binary, terminal):
    with inproc_client.as_current():
        model = inproc_client.submit(
            MASGDClassifier(verbose=1, **PARAMS).fit, *binary, pure=False
        ).result()
    assert model.n_iter_ == 5
    assert terminal.getvalue() == ""


def test_bar_and_the_bar_of_scikit_learn(binary, terminal):
    callback = pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    model = MASGDClassifier(verbose=1, **PARAMS).set_callbacks(callback.ProgressBar())
    model.fit(*binary)
    assert "round 5/5" in terminal.getvalue()
