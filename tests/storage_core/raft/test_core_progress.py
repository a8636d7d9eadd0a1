"""How much a leader sends ahead, and what it makes of answers that are late, lost, or contradict earlier ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.raft.progress import Inflight, Progress, Sending


def progress_of(match: int, next_index: int, sending: Sending, count_max: int = 3) -> Progress:
    return Progress(next_index, Inflight(count_max, 1000), match=match, counted=match, sending=sending)


@given(
    st.lists(st.one_of(st.integers(1, 40), st.none()), max_size=60),
    st.integers(1, 4),
    st.integers(1, 100),
)
def test_inflight_is_bounded_by_number_and_by_bytes(steps: list[int | None], count_max: int, size_max: int) -> None:
    """An integer sends so many bytes if that is allowed, None acknowledges the oldest message."""
    inflight, model, last = Inflight(count_max, size_max), [], 0
    for size in steps:
        if size is None:
            if model:
                inflight.release_to(model.pop(0)[0])
        elif not inflight.is_full:
            last += 1
            model.append((last, size))
            inflight.add(last, size)
        assert inflight.count == len(model)
        assert inflight.is_full == (len(model) >= count_max or sum(size for _, size in model) >= size_max)


def test_a_late_acknowledgement_releases_everything_before_it() -> None:
    inflight = Inflight(3, 100)
    for index in (2, 4, 6):
        inflight.add(index, 1)
    inflight.release_to(5)
    assert inflight.count == 1


def test_probing_sends_one_message_and_waits() -> None:
    progress = progress_of(0, 5, Sending.PROBE)
    progress.sent(6, 2, 10)
    assert progress.is_paused and progress.next == 5
    progress.answered_heartbeat()
    assert not progress.is_paused


def test_replicating_sends_ahead_until_the_window_is_full() -> None:
    progress = progress_of(4, 5, Sending.REPLICATE)
    for last_index in (5, 6, 7):
        assert not progress.is_paused
        progress.sent(last_index, 1, 10)
    assert progress.is_paused and progress.next == 8
    assert progress.accepted(5, verified=True)
    assert not progress.is_paused and progress.match == progress.counted == 5
    assert not progress.accepted(5, verified=True), "no news"


def test_a_heartbeat_answer_opens_a_full_window_by_one_message() -> None:
    progress = progress_of(4, 5, Sending.REPLICATE, count_max=2)
    progress.sent(5, 1, 1)
    progress.sent(6, 1, 1)
    progress.answered_heartbeat()
    assert not progress.is_paused and progress.inflight.count == 1


@pytest.mark.parametrize(
    ("match", "next_index", "before", "hint_next", "is_news", "expected_next"),
    [
        (0, 10, 9, 5, True, 5),
        (0, 10, 9, 20, True, 9),  # a hint that leads nowhere: at least one step back
        (0, 10, 7, 5, False, 10),  # the refusal of an older message
        (3, 10, 9, 1, True, 4),  # never below what is known to match
    ],
)
def test_a_refused_probe_goes_back_as_far_as_the_hint_says(
    match: int, next_index: int, before: int, hint_next: int, is_news: bool, expected_next: int
) -> None:
    progress = progress_of(match, next_index, Sending.PROBE)
    progress.sent(next_index - 1, 0, 0)
    assert progress.refused(before, hint_next) is is_news
    assert progress.next == expected_next
    assert progress.is_paused is not is_news


def test_a_refusal_while_replicating_starts_a_probe_at_what_matches() -> None:
    progress = progress_of(4, 9, Sending.REPLICATE)
    assert not progress.refused(3, 1), "refused before it accepted 4: an old message"
    assert progress.refused(8, 3)
    assert (progress.sending, progress.next, progress.match) == (Sending.PROBE, 5, 4)


def test_a_follower_that_lost_what_it_had_is_believed_and_counts_no_more() -> None:
    progress = progress_of(4, 5, Sending.PROBE)
    assert progress.refused(4, 2)
    assert (progress.match, progress.counted, progress.next) == (0, 0, 2)


def test_what_was_accepted_unverified_does_not_count() -> None:
    progress = progress_of(4, 8, Sending.REPLICATE)
    assert progress.accepted(7, verified=False)
    assert (progress.match, progress.counted) == (7, 4)
    assert not progress.accepted(6, verified=True), "a late word from before"
    assert (progress.match, progress.counted) == (7, 6)


def test_nothing_is_sent_while_a_snapshot_is_under_way() -> None:
    progress = progress_of(4, 5, Sending.PROBE)
    progress.sent_snapshot(20)
    assert progress.is_paused
    assert not progress.refused(4, 1), "the refusal that led to the snapshot, once more"
    progress.probe()
    assert (progress.sending, progress.next) == (Sending.PROBE, 21)


def test_after_a_failed_snapshot_it_begins_where_the_logs_agree() -> None:
    progress = progress_of(4, 5, Sending.PROBE)
    progress.sent_snapshot(20)
    progress.snapshot_failed()
    assert (progress.sending, progress.next) == (Sending.PROBE, 5)
