"""Tests run on volumes on disks; those marked `buckets`, and most of three modules, in buckets of a server as well.

What differs there lies below the log of a volume: tests/storage_core/objects, store/volume/test_object_log.py and
simulation/test_object_stores.py are about that alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.objects.server import Server
from harness.processes import Machine

from storage_core.store.volume import object_probe

SHARED = ("test_backup", "test_importing", "test_restored_streams")
DAMAGE = "it damages or loses files of a simulated disk; objects are damaged in test_object_log.py and test_volumes.py"
MANY = "hundreds of cases of one rule above the volumes; calls that fail are those of the tests in objects/"
LOCKS = "it meets locks, or two processes on one disk; leases are those of test_hosts.py"
PATHS = "it is about paths on disks"
CANNOT = {
    DAMAGE: (
        "test_each_block_is_taken_from_whichever_copies_are_whole",
        "test_a_message_without_a_whole_copy_keeps_a_backup_from_being_finished",
        "test_what_was_declared_lost_is_lost_in_the_restored_store_as_well",
        "test_what_is_on_the_volumes_of_a_restored_store_is_the_same_byte_for_byte",
        "test_an_import_goes_on_with_the_parts_that_are_missing",
        "test_tasks_may_be_done_twice_and_in_any_order",
        "test_an_import_that_was_given_up_leaves_nothing_after_a_week",
    ),
    MANY: (
        "test_every_byte_of_a_backup_counts",
        "test_holes_and_codecs_and_many_frames_come_through",
        "test_a_restore_that_ends_at_any_call_is_there_whole_or_not_at_all",
        "test_a_call_that_fails_leaves_the_store_as_it_was_or_is_survived",
        "test_an_import_that_ends_at_any_call_is_there_whole_or_not_at_all_and_goes_on",
        "test_a_call_that_fails_is_survived_or_leaves_no_stream",
        "test_a_restored_store_is_the_store_on_as_many_volumes_as_are_given",
        "test_a_store_of_a_nats_server_is_imported_as_it_is_read",
        "test_a_store_of_a_stan_server_is_imported_as_it_is_read",
        "test_everything_that_was_imported_is_whole_on_every_volume",
    ),
    LOCKS: ("test_a_backup_of_another_host_is_written_from_where_it_is_restored",),
    PATHS: (
        "test_what_is_no_place_for_a_backup_is_refused_and_left_alone",
        "test_what_is_no_backup_says_what_it_is",
        "test_volumes_that_are_not_empty_or_too_many_are_refused_and_left_alone",
        "test_what_cannot_be_restored_is_refused_before_anything_is_made",
    ),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_shared = metafunc.module.__name__.rpartition(".")[2] in SHARED and "tmp_path" not in metafunc.fixturenames
    is_shared = is_shared and not any(metafunc.function.__name__ in names for names in CANNOT.values())
    if is_shared or metafunc.definition.get_closest_marker("buckets") is not None:
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
