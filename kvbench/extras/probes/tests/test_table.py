"""The order of the lines of a table of probes."""

import random

import pyarrow as pa

from kvbench.extras.probes.numbers import SCHEMA
from kvbench.extras.probes.table import means_of


def test_means_stand_in_the_order_of_their_numbers():
    """Arrow numbers its groups by their hashes, so that some names of cells would change the order of the heads."""
    draw = random.Random(0)
    places = [(layer, head) for layer in range(5) for head in range(2)]
    for _ in range(40):
        cell = f"{draw.getrandbits(64):016x}"
        rows = [
            {"cell": cell, "sample": 0, "quantity": "max", "layer": layer, "head": head, "value": layer + head / 10}
            for layer, head in places
        ]
        means = means_of(pa.Table.from_pylist(rows, SCHEMA), ("layer", "head"))
        assert [mean.mean for mean in means] == [layer + head / 10 for layer, head in places]
