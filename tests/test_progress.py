"""What a run shows: lines where there is no terminal, one live display where there is."""

import io

import pytest
from rich.console import Console

from tnctl import progress
from tnctl.limits import size
from tnctl.progress import Display, clock


@pytest.fixture
def shown(monkeypatch):
    """Replaces the console, and the clock; returns (text so far, advance the clock)."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def console(terminal):
        out = io.StringIO()
        made = Console(
            file=out, force_terminal=terminal, width=110, highlight=False, soft_wrap=True,
            legacy_windows=False,
        )  # fmt: skip
        monkeypatch.setattr(progress, "console", made)
        return out

    def advance(seconds):
        now[0] += seconds

    return console, advance


def test_lines_without_a_terminal(shown):
    console, advance = shown
    out = console(False)
    with Display("epoch 1/2", 1000) as display:
        display.update(10, {"examples": "10", "loss": "0.7"})
        assert out.getvalue() == ""
        advance(10)
        display.update(250, {"examples": "250", "loss": "0.6"})
        advance(9)
        display.update(500, {"examples": "500"})
        display.update(1000, {"examples": "1,000", "auc": "0.71"})
        display.finish()
    assert out.getvalue().splitlines() == [
        "epoch 1/2  25%  250 examples  loss 0.6  30 s left",
        "epoch 1/2  1,000 examples  auc 0.71",
    ]
    assert "\x1b" not in out.getvalue()


def test_a_text_with_line_ends_is_one_line(shown):
    console, _ = shown
    out = console(False)
    progress.say("1 score written to x\ntnctl: \x1b[2J", "a second line")
    progress.table("of x\ny", ("a",), [["b\nc"]])
    assert out.getvalue().splitlines() == [
        "1 score written to x\\ntnctl: \\x1b[2J", "a second line", "of x\\ny", "a   ", "b\\nc",
    ]  # fmt: skip


def test_time_left_is_of_the_work_only(shown):
    console, advance = shown
    console(False)
    display = Display("epoch", 100)
    assert display.seconds_left() is None
    advance(10)
    display.update(10, "")
    assert display.seconds_left() == pytest.approx(90)
    with display.meanwhile("evaluating"):
        advance(1000)
        with display.meanwhile("saving"):
            advance(500)
    assert display.seconds_left() == pytest.approx(90)
    unknown = Display("epoch", None)
    advance(1)
    unknown.update(10, "")
    assert unknown.seconds_left() is None


def test_a_guess_that_was_too_low_is_dropped(shown):
    console, advance = shown
    console(False)
    display = Display("epoch", 100, guessed=True)
    advance(10)
    display.update(50, "")
    assert display._share() == "~50%"
    display.update(101, "")
    assert display.seconds_left() is None
    assert display._share() == ""


def test_a_terminal_shows_all_of_it_live(shown):
    console, advance = shown
    out = console(True)
    with Display("epoch 1/2", 1000) as display:
        advance(10)
        display.update(250, {"examples/s": "25", "loss": "0.6012", "rows": "12"})
        with display.meanwhile("evaluating on data.validation"):
            display._live.refresh()
        progress.say("a line above")
        display.finish()
    text = out.getvalue()
    for words in ("epoch 1/2", "25%", "30 s left", "examples/s", "0.6012", "evaluating on"):
        assert words in text, words
    assert "a line above" in text
    assert text.endswith("epoch 1/2  examples/s 25  loss 0.6012  rows 12\n")


WORKERS = "workers: data 1% | 2%"


def test_a_further_line_without_a_terminal(shown):
    console, advance = shown
    out = console(False)
    with Display("epoch", 100) as display:
        advance(10)
        display.update(10, {"loss": "0.7"}, WORKERS)
        display.finish()
    assert out.getvalue().splitlines() == [
        "epoch  10%  loss 0.7  1:30 left",
        "  workers: data 1% | 2%",
        "epoch  loss 0.7",
        "  workers: data 1% | 2%",
    ]


def test_ctrl_c_gives_the_terminal_back(shown):
    console, _ = shown
    out = console(True)
    with pytest.raises(KeyboardInterrupt), Display("epoch", None) as display:
        display.update(1, {"loss": "0.5"})
        raise KeyboardInterrupt
    assert "\x1b[?25h" in out.getvalue()  # the cursor is back
    assert not display._live.is_started


def test_ctrl_c_while_it_starts(shown, monkeypatch):
    console, _ = shown
    console(True)
    display = Display("epoch", None)
    start = display._live.start

    def interrupted():
        start()
        raise KeyboardInterrupt

    monkeypatch.setattr(display._live, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), display:
        pass
    assert not display._live.is_started
    assert progress._open == []


def test_waiting_in_a_display_is_a_note_in_it(shown):
    console, advance = shown
    out = console(True)
    with Display("epoch", 100) as display:
        advance(10)
        display.update(10, "")
        with progress.waiting("saving the best"):
            display._live.refresh()
            advance(1000)
        assert display.seconds_left() == pytest.approx(90)
    assert "saving the best" in out.getvalue()
    with progress.waiting("loading"):
        advance(1)
    assert "loading" in out.getvalue()
    out = console(False)
    with progress.waiting("loading"):
        assert out.getvalue() == "loading\n"


def test_sizes_and_times():
    assert [clock(s) for s in (0, 59.4, 61, 3599, 3600, 7384)] == [
        "0 s", "59 s", "1:01", "59:59", "1:00:00", "2:03:04",
    ]  # fmt: skip
    assert [size(n) for n in (0, 1023, 2048, 5 << 20, 3 << 40)] == [
        "0 B", "1,023 B", "2 KiB", "5.0 MiB", "3.0 TiB",
    ]  # fmt: skip
