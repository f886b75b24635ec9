"""Any torchvision or timm classifier by its name, with random weights."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from torch import nn

from fire_core.ranges import Count, checked
from harness.config.errors import ConfigError, one_line


def _unknown(library: str, architecture: str, names: list[str]) -> ConfigError:
    near = get_close_matches(architecture, names, n=5, cutoff=0.3) or names[:5]
    return ConfigError(f"model.name={architecture} is no {library} classifier; near it: {', '.join(near)}")


def _own_options(options: Mapping[str, Any] | None, *decided: str) -> dict[str, Any]:
    """The user's arguments for a library's model.

    Args:
        options: of `model.options=`.
        *decided: arguments that the data, or this harness, decide.

    Raises:
        ConfigError: it holds one of these.
    """
    for name in decided:
        if name in (options or {}):
            raise ConfigError(f"model.options has {name}, which the data decide; networks begin at random weights")
    return dict(options or {})


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
    architecture: str,
    num_classes: Count,
    in_channels: Count = 3,
    image_size: Count | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A torchvision classifier, not pretrained.

    Args:
        architecture: torchvision's name of it, for example `resnet50`.
        num_classes: number of outputs.
        in_channels: channels of an image; other than 3, the first convolution is replaced.
        image_size: height and width in pixels; only vision transformers need it.
        options: further arguments of torchvision's, for example `{dropout: 0.1}`.

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
    given = _own_options(options, "weights", "num_classes")
    if architecture in ("googlenet", "inception_v3"):  # else they return several outputs, and warn
        given = {"aux_logits": False, "init_weights": True} | given
    if architecture.startswith("vit_") and image_size is not None:
        given = {"image_size": image_size} | given
    try:
        model: nn.Module = torchvision.models.get_model(architecture, weights=None, num_classes=num_classes, **given)
    except Exception as error:
        raise ConfigError(f"model.name={architecture} cannot be built: {one_line(error)}") from error
    change_first_convolution(model, in_channels)
    return model


@checked
def timm_model(
    architecture: str,
    num_classes: Count,
    in_channels: Count = 3,
    image_size: Count | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A timm classifier, not pretrained; needs the optional package timm.

    Args:
        architecture: timm's name of it, for example `resnet18`.
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width in pixels, passed to the models that have such an argument.
        options: further arguments of timm's, for example `{patch_size: 4, depth: 6}`.

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
    own = _own_options(options, "pretrained", "num_classes", "in_chans")
    given: dict[str, Any] = {"pretrained": False, "num_classes": num_classes, "in_chans": in_channels} | own
    try:
        try:
            model = timm.create_model(architecture, **({"img_size": image_size} | given))
        except TypeError:  # a model for images of any size
            model = timm.create_model(architecture, **given)
    except Exception as error:
        raise ConfigError(f"model.name={architecture} cannot be built: {one_line(error)}") from error
    return model


def _torchvision_command(name: str) -> str | None:
    """How to choose a classifier of torchvision on the command line; None: it has none of this name."""
    import torchvision

    known = name in torchvision.models.list_models(module=torchvision.models)
    return f"model=torchvision model.name={name}" if known else None


def _timm_command(name: str) -> str | None:
    import timm

    return f"model=timm model.name={name}" if timm.is_model(name) else None


# What is said of model=resnet50 (harness.config.groups).
torchvision_model.command_for = _torchvision_command  # type: ignore[attr-defined]
timm_model.command_for = _timm_command  # type: ignore[attr-defined]
