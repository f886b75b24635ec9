"""Any torchvision or timm classifier by its name, with random weights."""

from difflib import get_close_matches
from typing import Any

from torch import nn

from fire_core.ranges import Count, checked
from harness.config.errors import ConfigError, one_line


def _unknown(library: str, architecture: str, names: list[str]) -> ConfigError:
    near = get_close_matches(architecture, names, n=5, cutoff=0.3) or names[:5]
    return ConfigError(f"model.name={architecture} is no {library} classifier; near it: {', '.join(near)}")


def change_first_convolution(model: nn.Module, in_channels: int) -> None:
    """Let the first convolution take images of `in_channels` channels instead of 3 (with new random weights)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            if module.in_channels != in_channels:
                names = ("out_channels", "kernel_size", "stride", "padding", "dilation")
                same: dict[str, Any] = {key: getattr(module, key) for key in names}
                new = nn.Conv2d(in_channels, bias=module.bias is not None, **same)
                model.set_submodule(name, new)
            return


@checked
def torchvision_model(
    architecture: str, num_classes: Count, in_channels: Count = 3, image_size: Count | None = None
) -> nn.Module:
    """A torchvision classifier, not pretrained.

    Args:
        architecture: torchvision's name of it, for example `resnet50`.
        num_classes: number of outputs.
        in_channels: channels of an image; other than 3, the first convolution is replaced.
        image_size: height and width in pixels; only vision transformers need it.

    Returns:
        The model, (N, C, H, W) -> (N, num_classes).

    Raises:
        ConfigError: if torchvision has no such classifier, or cannot build it for these images.
        ValueError: if a size is not a whole number of at least one.
    """
    import torchvision  # here, as torchvision takes seconds to import

    names = torchvision.models.list_models(module=torchvision.models)
    if architecture not in names:
        raise _unknown("torchvision", architecture, names)
    options: dict[str, Any] = {}
    if architecture in ("googlenet", "inception_v3"):  # else they return several outputs, and warn
        options = {"aux_logits": False, "init_weights": True}
    if architecture.startswith("vit_") and image_size is not None:
        options = {"image_size": image_size}
    try:
        model: nn.Module = torchvision.models.get_model(architecture, weights=None, num_classes=num_classes, **options)
    except Exception as error:
        raise ConfigError(f"model.name={architecture} cannot be built: {one_line(error)}") from error
    change_first_convolution(model, in_channels)
    return model


@checked
def timm_model(
    architecture: str, num_classes: Count, in_channels: Count = 3, image_size: Count | None = None
) -> nn.Module:
    """A timm classifier, not pretrained; needs the optional package timm.

    Args:
        architecture: timm's name of it, for example `resnet18`.
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width in pixels, passed to the models that have such an argument.

    Returns:
        The model, (N, C, H, W) -> (N, num_classes).

    Raises:
        ConfigError: if timm is missing, has no such model, or cannot build it for these images.
        ValueError: if a size is not a whole number of at least one.
    """
    try:
        import timm
    except ImportError as error:
        raise ConfigError("model=timm needs the package timm: pip install timm") from error
    if not timm.is_model(architecture):
        raise _unknown("timm", architecture, timm.list_models())
    options: dict[str, Any] = {"pretrained": False, "num_classes": num_classes, "in_chans": in_channels}
    try:
        try:
            model = timm.create_model(architecture, img_size=image_size, **options)
        except TypeError:  # a model for images of any size
            model = timm.create_model(architecture, **options)
    except Exception as error:
        raise ConfigError(f"model.name={architecture} cannot be built: {one_line(error)}") from error
    return model
