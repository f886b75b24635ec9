"""From a model's config and a data set's shape to the model."""

import inspect
from collections.abc import Mapping
from typing import Any

import hydra
from torch import nn


def build_model(config: Mapping[str, Any], num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """Instantiate a model for images of a data set.

    Args:
        config: the `model` group: `_target_`, `name` (for run folders) and the model's own options.
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width of an image in pixels, passed on to the models that ask for it.

    Returns:
        The model, (N, C, H, W) -> (N, num_classes), drawn from torch's global generator.

    Raises:
        hydra.errors.InstantiationException: whose cause is the model's own one-line error.
    """
    options = {
        key: value for key, value in config.items() if key != "name"
    }  # interpolations are resolved here
    shape = {"num_classes": num_classes, "in_channels": in_channels}
    if "image_size" in inspect.signature(hydra.utils.get_object(options["_target_"])).parameters:
        shape["image_size"] = options.pop("image_size", image_size)
    return hydra.utils.instantiate(options, **shape)
