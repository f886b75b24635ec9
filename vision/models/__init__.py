"""Image classifiers, (N, C, H, W) -> (N, num_classes), built from `num_classes` and `in_channels` by keyword.

`MLP`, `ViT` and `VGG16` also need `image_size`. The paper's three networks have a `backbone` and a `head`.
"""

from vision.models.by_name import timm_model, torchvision_model
from vision.models.mlp import MLP
from vision.models.resnet18 import ResNet18
from vision.models.small_resnet import SmallResNet
from vision.models.vgg import VGG16
from vision.models.vit import ViT

__all__ = ["MLP", "VGG16", "ResNet18", "SmallResNet", "ViT", "timm_model", "torchvision_model"]
