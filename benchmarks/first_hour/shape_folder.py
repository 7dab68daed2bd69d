"""Write a model folder of a shape, with random weights, for sides of a comparison that read folders.

python -m benchmarks.first_hour.shape_folder SHAPE FOLDER [--cpu]

The folder has no tokenizer: what reads it is given token ids.
"""

import argparse

import torch

from kvbench.models.loading.weights import random, shape_config
from kvbench.work.planned import plan_sweep


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("folder")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    (group,) = plan_sweep([f"model={options.shape}", "policy=full", "task=efficiency"], tell=print).plan.groups
    shape = group.model.shape
    assert shape is not None
    device, dtype = ("cpu", torch.float32) if options.cpu else ("cuda", torch.bfloat16)
    random(shape_config(shape), shape.seed, dtype, torch.device(device)).save_pretrained(options.folder)


if __name__ == "__main__":
    main()
