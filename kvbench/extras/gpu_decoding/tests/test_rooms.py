"""Rooms: memory of decode batches that outlives a prompt."""

import pytest
import torch

from kvbench.extras.gpu_decoding.rooms import MOST, Room, Rooms, round_up
from tests.pretended_gpu import PretendedGpu

LAYERS, HEADS = 2, (2, 1)


class Batch:
    """What a room remembers of the batch that lies in it: whether it exists."""


def take(rooms: Rooms, user: Batch, pairs: int, longest: int = 40, tail: int = 8, head_dim: int = 4) -> Room | None:
    return rooms.take(user, torch.zeros(1, head_dim), LAYERS, HEADS, (pairs, longest, tail))


@pytest.mark.parametrize("number", [1, 31, 32, 33, 1000, 4097, 131_072, 131_073])
def test_sizes_are_rounded_up_by_a_sixteenth_to_a_fifth(number: int) -> None:
    assert number * 17 // 16 <= round_up(number) <= max(64, number * 1.2)


def test_a_room_serves_later_batches_of_its_size_and_grows() -> None:
    rooms, first, second = Rooms(), Batch(), Batch()
    room = take(rooms, first, 1000)
    assert room is not None and take(rooms, second, 990) is not room, "the first batch lies there"
    del first, second
    again = take(rooms, Batch(), 1020)
    assert take(rooms, Batch(), 1000) is again
    larger = take(rooms, Batch(), 1500)
    assert again is not None and larger is not None and larger.sizes[0] >= 1500
    assert rooms.bytes_held == larger.bytes_held > again.bytes_held, "the smaller room gave way"


def test_a_room_is_not_taken_for_much_less_than_it_holds() -> None:
    rooms = Rooms()
    large, small = take(rooms, Batch(), 10_000), take(rooms, Batch(), 1000)
    assert large is not small and take(rooms, Batch(), 9000) is large


def test_the_rooms_of_the_last_uses_are_kept() -> None:
    rooms = Rooms()
    taken = [take(rooms, Batch(), 100, head_dim=dim) for dim in range(1, MOST + 2)]
    assert take(rooms, Batch(), 100, head_dim=2) is taken[1]
    assert take(rooms, Batch(), 100, head_dim=1) is not taken[0]


def test_layers_lie_one_after_the_other() -> None:
    rooms, user = Rooms(), Batch()
    room = take(rooms, user, 1000)
    assert room is not None
    (keys, values), (first,) = room.place(torch.zeros(1, 4), torch.tensor([[3, 0, 4]]))
    (more, _), (second,) = room.place(torch.zeros(1, 4), torch.tensor([[5, 6, 7]]))
    assert (len(keys), len(values), len(more)) == (7, 7, 18)
    assert (first.starts.tolist(), first.lengths.tolist()) == ([0, 3, 3], [3, 0, 4])
    assert (second.starts.tolist(), second.lengths.tolist()) == ([7, 12, 18], [5, 6, 7])
    keys.fill_(1.0)
    more.fill_(2.0)
    assert second.keys[7:25].eq(2.0).all() and first.keys[:7].eq(1.0).all()


def test_other_rooms_give_way_where_memory_is_short() -> None:
    with PretendedGpu(total=320_000):
        rooms, like = Rooms(), torch.zeros(1, 4, device="cuda")

        def on_gpu(user: Batch, pairs: int) -> Room | None:
            return rooms.take(user, like, LAYERS, HEADS, (pairs, 40, 8))

        first = on_gpu(Batch(), 1000)
        assert first is not None
        del first
        large = on_gpu(user := Batch(), 8000)
        assert large is not None and large.keys.device.type == "cuda" and not large.free
        assert on_gpu(Batch(), 16_000) is None, "a batch that does not fit has memory of its own, or fails"
        assert rooms.bytes_held == 0
        del user
