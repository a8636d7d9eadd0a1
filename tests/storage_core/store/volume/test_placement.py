"""Where blocks go and where they are looked for, by metadata and by what the volumes are like."""

import pickle
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness.copies import INCARNATION, Scattered

from storage_core.errors import NoQuorumError
from storage_core.metadata.manifest import BLOCK_DTYPE, Table
from storage_core.store.volume import placement
from storage_core.store.volume.state import VolumeState
from storage_core.store.volume.volumes import Volume

OLD_INCARNATION = b"OLD-INCARNATION-"


@pytest.fixture
def five(tmp_path: Path) -> Scattered:
    """A store of five volumes with a stream on 3, 0 and 1, in this order."""
    return Scattered.make(tmp_path, 5, placed=[3, 0, 1])


def lose(scattered: Scattered, number: int, problem: VolumeState = VolumeState.MISSING) -> None:
    one = scattered.volumes[number]
    scattered.volumes[number] = Volume(
        one.volume_id, one.path, None, problem, f"{one.path} is {problem}", files=one.files
    )


def edit_voter(scattered: Scattered, number: int, **changes: object) -> None:
    volume_id = scattered.volumes[number].volume_id
    voters = tuple(
        msgspec.structs.replace(one, **changes) if one.volume_id == volume_id else one for one in scattered.state.voters
    )
    scattered.state = replace(scattered.state, voters=voters)


def numbers(scattered: Scattered, volume_ids: list[bytes]) -> list[int]:
    return [[one.volume_id for one in scattered.volumes].index(volume_id) for volume_id in volume_ids]


def write_numbers(scattered: Scattered) -> list[int]:
    found = placement.write_volumes(scattered.state, scattered.stream, scattered.volumes)
    return numbers(scattered, [one.volume_id for one in found])


def read_numbers(scattered: Scattered) -> list[int]:
    found = placement.read_volumes(scattered.state, scattered.stream, scattered.volumes)
    return numbers(scattered, [one.volume_id for one in found])


@pytest.mark.parametrize(("replicas", "quorum"), [(1, 1), (3, 2), (5, 3)])
def test_a_quorum_is_a_majority_of_the_placement(tmp_path: Path, replicas: int, quorum: int) -> None:
    assert placement.quorum(Scattered.make(tmp_path, 5, placed=range(replicas)).stream) == quorum


def test_holder_bits_stand_for_positions_in_the_placement_and_strangers_have_none(five: Scattered) -> None:
    stream, ids = five.stream, [one.volume_id for one in five.volumes]
    assert placement.holders_mask(stream, []) == 0
    assert placement.holders_mask(stream, [ids[3]]) == 0b001
    assert placement.holders_mask(stream, [ids[1], ids[0], ids[2], b"?" * 16]) == 0b110
    for mask in range(8):
        assert placement.holders_mask(stream, placement.holders(stream, mask)) == mask


def test_blocks_are_written_to_the_placement_in_its_order(five: Scattered) -> None:
    assert write_numbers(five) == [3, 0, 1]
    found = placement.write_volumes(five.state, five.stream, five.volumes)
    assert [one.uri for one in found] == [str(five.volumes[number].path) for number in (3, 0, 1)]
    assert [one.instance_id for one in found] == [b"INSTANCE-%07d" % number for number in (3, 0, 1)]


@pytest.mark.parametrize("trouble", ["missing", "retired", "learner", "made anew", "not at hand"])
def test_a_volume_that_does_not_count_takes_no_blocks_and_two_are_too_many(five: Scattered, trouble: str) -> None:
    def afflict(number: int) -> None:
        if trouble == "missing":
            lose(five, number)
        elif trouble == "retired":
            edit_voter(five, number, retired="fsync failed")
        elif trouble == "learner":
            edit_voter(five, number, learner=True)
        elif trouble == "made anew":
            edit_voter(five, number, instance_id=b"OTHER-INSTANCE--")
        else:
            five.volumes = [one for one in five.volumes if one.volume_id != b"VOLUME-%09d" % number]

    ids = {number: five.volumes[number].volume_id for number in range(5)}
    afflict(0)
    found = placement.write_volumes(five.state, five.stream, five.volumes)
    assert [one.volume_id for one in found] == [ids[3], ids[1]]
    afflict(1)
    with pytest.raises(NoQuorumError, match="stream 'S': 1 of its 3 volumes can be written, 2 are needed") as raised:
        placement.write_volumes(five.state, five.stream, five.volumes)
    if trouble == "not at hand":
        assert ids[0].hex() in str(raised.value) and ids[1].hex() in str(raised.value)
    else:
        assert "volume-0" in str(raised.value) and "volume-1" in str(raised.value)


def test_reads_try_what_counts_then_other_volumes_then_doubtful_ones_and_never_missing_ones(five: Scattered) -> None:
    assert read_numbers(five) == [3, 0, 1, 2, 4]
    lose(five, 3, VolumeState.DAMAGED)
    edit_voter(five, 0, retired="it was slow")
    lose(five, 2)
    assert read_numbers(five) == [1, 4, 3, 0]


def test_a_new_stream_goes_where_the_fewest_bytes_are(five: Scattered) -> None:
    five.add_block(10, 10)  # on 3, 0 and 1
    assert numbers(five, list(placement.choose(five.state, five.volumes, 1))) == [2]
    assert numbers(five, list(placement.choose(five.state, five.volumes, 3))) == [0, 2, 4]
    assert numbers(five, list(placement.choose(five.state, five.volumes, 5))) == [0, 1, 2, 3, 4]


def test_a_volume_that_is_down_is_chosen_only_where_there_is_no_other(five: Scattered) -> None:
    lose(five, 2)
    assert 2 not in numbers(five, list(placement.choose(five.state, five.volumes, 3)))
    assert len(placement.choose(five.state, five.volumes, 5)) == 5
    for number in (0, 1):
        edit_voter(five, number, retired="it failed")
    assert len(placement.choose(five.state, five.volumes, 3)) == 3
    with pytest.raises(NoQuorumError, match="of 5 replicas 3 must be on volumes that can be written now"):
        placement.choose(five.state, five.volumes, 5)


def test_more_replicas_than_volumes_are_refused(tmp_path: Path) -> None:
    scattered = Scattered.make(tmp_path, 3)
    with pytest.raises(ValueError, match="num_replicas: 5 replicas need as many volumes; the store has 3"):
        placement.choose(scattered.state, scattered.volumes, 5)


# --- plans


def manifest(scattered: Scattered, count: int, holders: list[int]) -> None:
    """Give the stream this many blocks of ten messages; no files."""
    made = np.zeros(count, BLOCK_DTYPE)
    dice = np.random.default_rng(1)
    for name in ("block_id", "digest"):
        made[name] = np.frombuffer(dice.bytes(16 * count), "V16")
    made["first"], made["span"], made["row_count"] = np.arange(count) * 10 + 1, 10, 10
    made["file_size"] = 1000
    made["holders"] = np.resize(holders, count)
    scattered.change(blocks=Table.of(made), next_sequence=count * 10 + 1)


def test_each_disk_is_first_for_its_share_of_the_blocks(tmp_path: Path) -> None:
    scattered = Scattered.make(tmp_path, 3)
    manifest(scattered, 3000, [0b111])
    first = [one.copies[0].volume_id for one in scattered.slices()]
    for volume in scattered.volumes:
        assert 800 < first.count(volume.volume_id) < 1200
    assert scattered.slices()[7].paths == scattered.slices()[7].paths


def test_volumes_that_took_the_block_come_before_those_that_missed_it(five: Scattered) -> None:
    manifest(five, 300, [0b001, 0b011, 0b111, 0b110])
    for at, one in enumerate(five.slices()):
        mask = [0b001, 0b011, 0b111, 0b110][at % 4]
        count = mask.bit_count()
        held = [copy.volume_id for copy in one.copies[:count]]
        assert placement.holders_mask(five.stream, held) == mask
        assert [copy.expected for copy in one.copies] == [True] * count + [False] * (5 - count)
        assert len(set(one.paths)) == 5


def test_a_copy_on_a_retired_volume_is_a_last_resort(five: Scattered) -> None:
    manifest(five, 50, [0b111])
    edit_voter(five, 0, retired="it failed")
    for one in five.slices():
        assert numbers(five, [copy.volume_id for copy in one.copies])[2:] == [2, 4, 0]
        assert [copy.expected for copy in one.copies] == [True, True, False, False, True]


def test_a_volume_that_is_missing_is_named_last(five: Scattered) -> None:
    manifest(five, 50, [0b111, 0b110])  # the second kind is not on volume 3
    lose(five, 3)
    for at, one in enumerate(five.slices()):
        order = numbers(five, [copy.volume_id for copy in one.copies])
        assert order[2:] == [2, 4, 3]
        assert one.copies[-1].expected == (at % 2 == 0)


def test_blocks_that_another_incarnation_wrote_are_looked_for_under_its_name(five: Scattered) -> None:
    manifest(five, 10, [0b111])
    five.change(origins=((OLD_INCARNATION, 51),))
    found = five.slices()
    assert [one.written_as for one in found] == [OLD_INCARNATION] * 5 + [INCARNATION] * 5
    assert {one.incarnation for one in found} == {INCARNATION}
    assert all(f"/{OLD_INCARNATION.hex()}/" in path for path in found[4].paths)
    assert all(f"/{INCARNATION.hex()}/" in path for path in found[5].paths)


def test_a_hundred_thousand_slices_share_the_names_of_volumes(tmp_path: Path) -> None:
    scattered = Scattered.make(tmp_path, 5)
    manifest(scattered, 100_000, [0b11111, 0b01111])
    found = scattered.slices()
    assert len(found) == 100_000
    assert len({id(one.copies) for one in found}) <= 10
    assert len(pickle.dumps(found[:1000])) < 200_000
    parts = found[3].split(4)
    assert [(one.first, one.end) for one in parts] == [(31, 35), (35, 39), (39, 41)]
    assert all(one.copies is found[3].copies for one in parts)
