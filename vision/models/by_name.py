"""Build any torchvision or timm classifier by its name, with random weights."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from torch import nn

from fire_core.ranges import Count, checked
from harness.config.errors import ConfigError, first_line


def _unknown(library: str, architecture: str, names: list[str]) -> ConfigError:
    """Return the error for an unknown architecture, with similar names."""
    similar = get_close_matches(architecture, names, n=5, cutoff=0.3) or names[:5]
    return ConfigError(f"model.name={architecture} is no {library} classifier; near it: {', '.join(similar)}")


def _checked_options(options: Mapping[str, Any] | None, *reserved: str) -> dict[str, Any]:
    """Return the user's arguments for a library's model.

    Args:
        options: the value of `model.options=`.
        *reserved: arguments that the data or this program decide.

    Raises:
        ConfigError: the options hold a reserved one.
    """
    for name in reserved:
        if name in (options or {}):
            raise ConfigError(
                f"model.options has {name}: the data decide the sizes, and networks begin at random weights"
            )
    return dict(options or {})


def change_first_convolution(model: nn.Module, in_channels: int) -> None:
    """Replace the first convolution, if it does not take `in_channels` channels, by one that does (random weights)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            if module.in_channels != in_channels:
                names = ("out_channels", "kernel_size", "stride", "padding", "dilation")
                options: dict[str, Any] = {key: getattr(module, key) for key in names}
                model.set_submodule(name, nn.Conv2d(in_channels, bias=module.bias is not None, **options))
            return


@checked
def torchvision_model(
    architecture: str,
    num_classes: Count,
    in_channels: Count = 3,
    image_size: Count | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a torchvision classifier, not pretrained.

    Args:
        architecture: torchvision's name of the model, for example `resnet50`.
        num_classes: number of outputs.
        in_channels: channels of an image; if it is not 3, the first convolution is replaced.
        image_size: height and width in pixels; only vision transformers need it.
        options: further arguments of torchvision's model, for example `{dropout: 0.1}`.

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
    arguments = _checked_options(options, "weights", "num_classes")
    if architecture in ("googlenet", "inception_v3"):  # by default these return several outputs, and warn
        arguments = {"aux_logits": False, "init_weights": True} | arguments
    if architecture.startswith("vit_") and image_size is not None:
        arguments = {"image_size": image_size} | arguments
    try:
        model: nn.Module = torchvision.models.get_model(
            architecture, weights=None, num_classes=num_classes, **arguments
        )
    except Exception as error:
        raise ConfigError(f"model.name={architecture} cannot be built: {first_line(error)}") from error
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
    """Build a timm classifier, not pretrained; needs the optional package timm.

    Args:
        architecture: timm's name of the model, for example `resnet18`.
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width in pixels, passed to the models that have such an argument.
        options: further arguments of timm's model, for example `{patch_size: 4, depth: 6}`.

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
    files_and_addresses = ("pretrained", "checkpoint_path", "cache_dir", "pretrained_cfg", "pretrained_cfg_overlay")
    user_options = _checked_options(options, "num_classes", "in_chans", *files_and_addresses)
    arguments: dict[str, Any] = {"pretrained": False, "num_classes": num_classes, "in_chans": in_channels}
    arguments |= user_options
    try:
        try:
            model = timm.create_model(architecture, **({"img_size": image_size} | arguments))
        except TypeError:  # the model takes images of any size and has no such argument
            model = timm.create_model(architecture, **arguments)
    except Exception as error:
        raise ConfigError(f"model.name={architecture} cannot be built: {first_line(error)}") from error
    return model


def _torchvision_command(name: str) -> str | None:
    """Return how to choose a torchvision classifier on the command line, None if there is none of this name."""
    import torchvision

    known = name in torchvision.models.list_models(module=torchvision.models)
    return f"model=torchvision model.name={name}" if known else None


def _timm_command(name: str) -> str | None:
    """Return how to choose a timm classifier on the command line, None if there is none of this name."""
    import timm

    return f"model=timm model.name={name}" if timm.is_model(name) else None


# harness.config.groups calls these for an unknown model=resnet50, to tell the user what to write instead.
torchvision_model.command_for = _torchvision_command  # type: ignore[attr-defined]
timm_model.command_for = _timm_command  # type: ignore[attr-defined]
