import pytest

from kvbench.support.quantity import count_noun, duration, numbered, parse_size, percent, shortened, size


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([], ""),
        ([0], "0 B"),
        ([999], "999 B"),
        ([1000], "0.98 KiB"),
        ([52480], "51.2 KiB"),
        ([512 * 1024], "512 KiB"),
        ([1023.9 * 1024], "1.00 MiB"),
        ([3 * 2**30], "3.00 GiB"),
        ([2**50], "1024 TiB"),
        ([52480, 2 * 52480], "51-102 KiB"),
        ([100, 100.0], "100 B"),
    ],
)
def test_sizes(counts: list[float], text: str) -> None:
    assert size(map(float, counts)) == text


TIMES = "0:0 ms,0.0004:0.4 ms,0.0019:1.9 ms,0.0456:46 ms,0.9996:1.00 s,1.234:1.23 s,12.34:12.3 s,123.4:123 s"


@pytest.mark.parametrize("case", [*TIMES.split(","), "0.01 0.02:10-20 ms", "2 0.5:0.50-2.00 s", ":"])
def test_durations(case: str) -> None:
    seconds, text = case.split(":")
    assert duration(map(float, seconds.split())) == text


def test_shares() -> None:
    assert percent([0.1]) == "10.0 %"
    assert percent([0.125, 0.1]) == "10.0-12.5 %"
    assert percent([0.10001, 0.1]) == "10.0 %"
    assert percent([]) == ""


def test_a_size_is_read_as_it_is_written() -> None:
    texts = ("1024B", "600KiB", "1.5GiB", "0.3B", "2TiB")
    assert [parse_size(text) for text in texts] == [1024, 600 * 2**10, 3 * 2**29, 0, 2**41]
    assert [parse_size(text) for text in ("600", "6 KiB", "600KB", "")] == [None] * 4


def test_counts_and_lists() -> None:
    assert (count_noun(1, "row"), count_noun(0, "row")) == ("1 row", "0 rows")
    assert (numbered([3]), numbered([1, 4])) == ("sample 3", "samples 1, 4")
    assert numbered(range(7), "layer", 2) == "layers 0, 1, ..."
    assert (shortened(["a", "b"], 2), shortened(["a", "b", "c"], 2)) == ("a, b", "a, b and 1 more")
