import pyarrow as pa
import pytest

from storage_core.block.bloom import BLOOM_SIZE_MAX, BLOOM_SIZE_MIN, BloomBuilder, is_filter_size, might_contain


def filled(count: int) -> bytes:
    builder = BloomBuilder()
    for first in range(0, count, 10_000):
        builder.add(pa.array([f"orders.{number}" for number in range(first, min(first + 10_000, count))]))
    return builder.encode()


@pytest.mark.parametrize("count", [1, 1_000, 50_000])
def test_what_was_added_is_always_found(count: int) -> None:
    bloom = filled(count)
    assert all(might_contain(bloom, f"orders.{number}") for number in range(0, count, max(1, count // 300)))


@pytest.mark.parametrize("count", [1_000, 50_000])
def test_few_others_are_found_and_the_size_follows_the_count(count: int) -> None:
    bloom = filled(count)
    assert len(bloom) * 8 <= 32 * count, "at most twice what half-filled bits need"
    wrong = sum(might_contain(bloom, f"others.{number}") for number in range(1_000))
    assert wrong <= 30


def test_more_subjects_than_the_largest_filter_is_made_for_still_works() -> None:
    bloom = filled(600_000)
    assert len(bloom) == BLOOM_SIZE_MAX
    assert might_contain(bloom, "orders.599999")
    assert sum(might_contain(bloom, f"others.{number}") for number in range(500)) < 100


def test_sizes_that_a_reader_takes() -> None:
    assert is_filter_size(BLOOM_SIZE_MIN)
    assert is_filter_size(BLOOM_SIZE_MAX)
    assert not any(map(is_filter_size, (0, BLOOM_SIZE_MIN // 2, 65, 96, BLOOM_SIZE_MAX * 2)))
