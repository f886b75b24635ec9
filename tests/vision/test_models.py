"""Models: output shapes, refusals, models of other libraries, and their configs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

import conf
from harness.config.errors import ConfigError
from vision.models import MLP, VGG16, ResNet18, ViT, timm_model, torchvision_model
from vision.task import build_model

CONFIGS = sorted(Path(conf.__file__).parent.glob("model/*.yaml"))
TINY = {
    "mlp": ["model.hidden=4"],
    "small_resnet": ["model.width=4"],
    "resnet18": ["model.width=4"],
    "vgg16": ["model.hidden=8"],
    "vit_tiny": ["model.depth=1", "model.dim=16", "model.mlp_dim=8"],
    "torchvision": ["model.name=squeezenet1_1"],
    "timm": ["model.name=resnet10t"],
}


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.stem in TINY], ids=lambda c: c.stem)
def test_every_config_builds(config):
    if config.stem == "timm":
        pytest.importorskip("timm")
    root = OmegaConf.create({"model": OmegaConf.load(config)})
    root.merge_with_dotlist(TINY[config.stem])
    model = build_model(root, SimpleNamespace(num_classes=5, in_channels=1, image_size=32))
    assert model.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 5)


def test_mlp_has_norms_or_biases():
    images = torch.randn(3, 2, 4, 4)
    for norm in (True, False):
        model = MLP(7, in_channels=2, image_size=4, hidden=5, depth=2, norm=norm)
        assert model(images).shape == (3, 7)
        assert sum(isinstance(m, torch.nn.BatchNorm1d) for m in model.modules()) == 2 * norm
        assert (model.backbone.fc0.bias is None) == norm


def test_mlp_with_layer_norm_reads_each_image_by_itself():
    model = MLP(7, in_channels=2, image_size=4, hidden=5, depth=2, norm="layer")
    images = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))
    normed = model.backbone[:3](images)  # flattened, fc0, norm0
    torch.testing.assert_close(normed.mean(1), torch.zeros(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("activation", "units"), [("crelu", 6), ("fourier", 3)])
def test_mlp_with_two_features_of_a_unit(activation, units):
    """CReLU (arXiv 2303.07507): relu(z), relu(-z). Deep Fourier features (2410.20634): sin z, cos z, half the units."""
    model = MLP(7, in_channels=2, image_size=4, hidden=6, depth=2, norm=False, activation=activation)
    images = torch.randn(3, 2, 4, 4)
    z = model.backbone.fc0(images.flatten(1))
    assert z.shape == (3, units)
    parts = (z.clamp(min=0), -z.clamp(max=0)) if activation == "crelu" else (torch.sin(z), torch.cos(z))
    torch.testing.assert_close(model.backbone[:3](images), torch.cat(parts, 1))
    assert model.backbone.fc1.in_features == model.head.in_features == 2 * units
    assert model(images).shape == (3, 7)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP(10, norm="batch"), r"^norm must be true or false or layer, got 'batch'$"),
        (lambda: MLP(10, activation="sine"), r"^activation=sine is unknown; accepted: relu, crelu, fourier$"),
        (lambda: MLP(10, hidden=5, activation="fourier"), r"^activation=fourier makes two features of a unit: 5 "),
        (lambda: ResNet18(10, variant="best"), r"^variant=best is unknown; accepted: original, fire_paper$"),
        (lambda: VGG16(10, image_size=40), r"^image_size must be a multiple of 32 for VGG-16, got 40$"),
        (lambda: ViT(10, image_size=30), r"^image_size must be a multiple of patch_size=4, got 30$"),
    ],
)
def test_arguments_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_vit_patches_run_row_by_row_with_channels_fastest():
    images = torch.arange(2 * 4 * 4.0).reshape(1, 2, 4, 4)
    patches = ViT(3, in_channels=2, image_size=4, patch_size=2, dim=4, depth=1).backbone.to_patch_embedding[0]
    expected = [
        [images[0, c, i + y, j + x] for y in range(2) for x in range(2) for c in range(2)]
        for i in (0, 2)
        for j in (0, 2)
    ]
    torch.testing.assert_close(patches(images)[0], torch.tensor(expected), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "vit_b_32", "inception_v3"])
def test_torchvision_by_name(name):
    with torch.device("meta"):  # shapes only: nobody waits for 86 M weights
        model = torchvision_model(name, num_classes=7, in_channels=1, image_size=96).train()
        assert model(torch.empty(2, 1, 96, 96)).shape == (2, 7)


def test_other_libraries_refuse_in_one_line(monkeypatch):
    with pytest.raises(ConfigError, match=r"^model.name=resnet51 is no torchvision classifier; near it: .*resnet50"):
        torchvision_model("resnet51", num_classes=2)
    with pytest.raises(ConfigError, match=r"^model.name=vit_b_32 cannot be built: [^\n]+$"):
        torchvision_model("vit_b_32", num_classes=2, image_size=33)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"^model=timm needs the package timm: pip install timm$"):
        timm_model("resnet18", num_classes=2)
