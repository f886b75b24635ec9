"""Data sets: the functions that `_target_` in `conf/dataset` names, each of which returns an `ImageData`."""

from vision.data.bits import load_bits
from vision.data.cifar import load_cifar10, load_cifar100
from vision.data.digits import load_digits
from vision.data.folder import load_folder
from vision.data.images import ImageData
from vision.data.mnist import load_fashion_mnist, load_mnist
from vision.data.tiny_imagenet import load_tiny_imagenet

__all__ = [
    "ImageData",
    "load_bits",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_fashion_mnist",
    "load_folder",
    "load_mnist",
    "load_tiny_imagenet",
]
