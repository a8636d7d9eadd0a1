"""Tests of these modules run on volumes on disks and in buckets of a server alike, but for those that cannot there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.objects.server import Server
from harness.processes import Machine

from storage_core.store.volume import object_probe

SHARED = (
    "test_backup", "test_consumer", "test_importing", "test_lag", "test_latest", "test_merging", "test_query",
    "test_restored_streams",
    "test_clock_jumps", "test_expiry", "test_limits", "test_markers", "test_per_subject", "test_retention",
    "test_rollups", "test_store_limits",
)  # fmt: skip
DAMAGE = "it damages or loses files of a simulated disk; objects are damaged in test_object_log.py and test_volumes.py"
REBUILT = "repair --adopt is refused in object stores: restore a backup"
MANY = "hundreds of cases of one rule above the volumes; calls that fail are those of the tests in objects/"
LOCKS = "it meets locks, or two processes on one disk; leases are those of test_hosts.py"
PATHS = "it is about paths on disks"
CANNOT = {
    DAMAGE: (
        "test_stuck_consumer_after_all_was_lost_new_messages_arrive_at_once_and_the_loss_is_told_once",
        "test_stuck_consumer_with_policy_fail_says_what_is_gone_until_it_is_reset",
        "test_messages_that_no_copy_has_wait_and_hold_nothing_up_until_declared_lost",
        "test_with_policy_fail_a_consumer_stops_right_before_what_no_copy_has",
        "test_what_cannot_be_looked_at_is_told_once_however_little_may_wait",
        "test_a_reset_passes_over_what_waited_and_is_lost",
        "test_without_a_quorum_a_consumer_with_news_is_still_shown",
        "test_damage_costs_no_more_than_the_exact_time",
        "test_a_batch_reads_from_the_consumer_and_moves_it_nowhere",
        "test_another_position_is_another_question_though_nothing_has_changed",
        "test_a_loss_is_told_once_however_often_it_is_asked_from_the_old_position",
        "test_a_loss_that_is_declared_while_a_batch_runs_is_told_with_the_next",
        "test_a_store_that_cannot_be_written_is_judged_by_what_can_be_read",
        "test_where_a_block_is_lost_subjects_keep_more_or_the_append_is_refused",
        "test_each_block_is_taken_from_whichever_copies_are_whole",
        "test_a_message_without_a_whole_copy_keeps_a_backup_from_being_finished",
        "test_what_was_declared_lost_is_lost_in_the_restored_store_as_well",
        "test_what_is_on_the_volumes_of_a_restored_store_is_the_same_byte_for_byte",
        "test_a_run_is_merged_from_good_copies_alone",
        "test_a_block_that_is_whole_nowhere_waits_for_its_repair_and_loses_nothing_more",
        "test_an_import_goes_on_with_the_parts_that_are_missing",
        "test_tasks_may_be_done_twice_and_in_any_order",
        "test_an_import_that_was_given_up_leaves_nothing_after_a_week",
    ),
    REBUILT: (
        "test_what_waits_for_a_consumer_is_not_skipped_when_its_stream_was_rebuilt",
        "test_a_consumer_whose_stream_was_rebuilt_follows_its_query",
    ),
    MANY: (
        "test_killed_at_any_call_a_query_has_begun_or_said_it_for_all_its_streams_or_for_none",
        "test_a_crash_at_each_call_leaves_every_marker_once",
        "test_a_stream_shows_what_a_list_with_limits_does",
        "test_a_stream_shows_what_a_list_with_limits_of_subjects_does",
        "test_every_byte_of_a_backup_counts",
        "test_holes_and_codecs_and_many_frames_come_through",
        "test_a_restore_that_ends_at_any_call_is_there_whole_or_not_at_all",
        "test_a_call_that_fails_leaves_the_store_as_it_was_or_is_survived",
        "test_nothing_is_lost_whatever_call_of_a_merge_goes_wrong",
        "test_an_append_whose_maintenance_merges_is_there_whole_or_not_at_all",
        "test_holders_merge_on_their_way_and_each_message_is_rewritten_once_a_level",
        "test_an_import_that_ends_at_any_call_is_there_whole_or_not_at_all_and_goes_on",
        "test_a_call_that_fails_is_survived_or_leaves_no_stream",
        "test_the_last_message_of_each_subject_is_found",
        "test_a_restored_store_is_the_store_on_as_many_volumes_as_are_given",
        "test_a_store_of_a_nats_server_is_imported_as_it_is_read",
        "test_a_store_of_a_stan_server_is_imported_as_it_is_read",
        "test_everything_that_was_imported_is_whole_on_every_volume",
    ),
    "it counts fsyncs; test_requests.py counts requests": ("test_all_streams_of_a_query_take_one_round_of_fsyncs",),
    "two of its machines share one simulated disk": ("test_a_message_stays_until_everybody_has_acknowledged_it",),
    LOCKS: (
        "test_a_backup_of_another_host_is_written_from_where_it_is_restored",
        "test_a_merge_that_cannot_be_committed_leaves_nothing",
    ),
    PATHS: (
        "test_what_is_no_place_for_a_backup_is_refused_and_left_alone",
        "test_what_is_no_backup_says_what_it_is",
        "test_volumes_that_are_not_empty_or_too_many_are_refused_and_left_alone",
        "test_what_cannot_be_restored_is_refused_before_anything_is_made",
    ),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_shared = metafunc.module.__name__.rpartition(".")[2] in SHARED
    uses_real_disk = "tmp_path" in metafunc.fixturenames
    if is_shared and not uses_real_disk and not any(metafunc.function.__name__ in names for names in CANNOT.values()):
        metafunc.parametrize("volumes", ["disks", "buckets"], indirect=True)


@pytest.fixture(scope="module", autouse=True)
def volumes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the volumes of simulated machines are."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", "disks") == "buckets":
            root: Path = request.getfixturevalue("s3_root")
            patch.setattr(object_probe, "PATIENCE_S", 0.0)
            patch.setattr(object_probe, "RACER_COUNT", 2)
            patch.setattr(Machine, "server", Server(root, request.getfixturevalue("s3_options")))
        yield
