"""Write a model folder of a shape, with random weights, for sides of a comparison that read folders.

python -m benchmarks.first_hour.shape_folder SHAPE FOLDER [--cpu]

The folder has no tokenizer: what reads it is given token ids.
"""

import torch

from benchmarks.first_hour.shape import group_of, options_of, place_of
from kvbench.models.loading.weights import random, shape_config


def main() -> None:
    """Write the folder."""
    options = options_of(__doc__, folder=str)
    shape = group_of(options.shape).model.shape
    assert shape is not None
    device, dtype = place_of(options.cpu)
    random(shape_config(shape), shape.seed, dtype, torch.device(device)).save_pretrained(options.folder)


if __name__ == "__main__":
    main()
