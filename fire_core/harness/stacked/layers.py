"""Layers of S perceptrons at once, forward and backward: one batched product instead of S small ones.

Of one network alone, convolutions too.

Small networks cost what calling torch costs, so here nothing is called twice and autograd not at all. Each layer keeps
what its backward pass needs. Gradients are written into the weights' `.grad`, which stays one tensor for good.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, fx, nn

aten = torch.ops.aten
VECTOR = 64  # bytes that kernels on a CPU take at once
PLAIN = ("zeros", tuple)  # padding of convolutions that is known here


def fills_vectors(whole: Tensor) -> bool:
    """Whether each network's part of a stacked tensor (S, ...) fills whole vectors of the CPU.

    Kernels round the numbers that are left at a tensor's end in another way. Where there are such, the networks' parts
    go through the kernel one by one, so that a network's numbers are those that it has alone.
    """
    return whole.device.type != "cpu" or whole[0].numel() * whole.element_size() % VECTOR == 0


class Layer(Protocol):
    """One layer of all networks; `name`: of its module in one network."""

    name: str

    def forward(self, x: Tensor, training: bool) -> Tensor:
        """(S, b, inputs) -> (S, b, outputs)."""

    def backward(self, g: Tensor, first: bool) -> Tensor:
        """Gradients by the outputs -> by the inputs; those by the weights are written.

        `first`: nothing below has weights, so that what is returned does not matter.
        """


class ToFloat(nn.Module):
    """Integers or truth values as float32, as a module that `layers_of` knows."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


class Flatten:
    """`nn.Flatten`, behind the dimension of the networks.

    Args:
        start: the first of the dimensions that become one, counted without that of the networks.
        end: the last of them.
    """

    name = ""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start + 1, end + (end >= 0)

    def forward(self, x: Tensor, training: bool) -> Tensor:
        self.shape = x.shape
        return x.flatten(self.start, self.end)

    def backward(self, g: Tensor, first: bool) -> Tensor:
        return g.view(self.shape)


class Linear:
    """x W^T + b.

    Args:
        weight: (S, outputs, inputs).
        bias: (S, outputs), or None.
    """

    name = ""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.transposed = weight.detach().mT
        self.row = None if bias is None else bias.detach()[:, None]
        self.alone = len(weight) == 1  # then as autograd does it: products of few numbers are rounded in another way

    def forward(self, x: Tensor, training: bool) -> Tensor:
        self.x = x
        if self.row is None:
            return torch.bmm(x, self.transposed)
        if self.alone:
            return torch.addmm(self.row[0, 0], x[0], self.transposed[0])[None]
        return torch.baddbmm(self.row, x, self.transposed)

    def backward(self, g: Tensor, first: bool) -> Tensor:
        assert self.weight.grad is not None
        if self.alone:
            torch.mm(g[0].t(), self.x[0], out=self.weight.grad[0])
        else:
            torch.bmm(g.mT, self.x, out=self.weight.grad)
        if self.bias is not None:
            assert self.bias.grad is not None
            torch.sum(g, 1, out=self.bias.grad)
        if first:
            return g
        return (g[0] @ self.weight.detach()[0])[None] if self.alone else torch.bmm(g, self.weight.detach())


class Convolution:
    """`nn.Conv2d` of one network, by the kernels that autograd takes.

    Args:
        module: for its options.
        weight: (1, filters, channels / groups, height, width).
        bias: (1, filters), or None.
    """

    name = ""

    def __init__(self, module: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.own = weight.detach()[0]
        self.row = None if bias is None else bias.detach()[0]
        self.how = (module.stride, module.padding, module.dilation, False, (0, 0), module.groups)

    def forward(self, x: Tensor, training: bool) -> Tensor:
        self.x = x[0]
        y: Tensor = aten.convolution(self.x, self.own, self.row, *self.how)
        return y[None]

    def backward(self, g: Tensor, first: bool) -> Tensor:
        sizes = None if self.row is None else list(self.row.shape)
        wanted = [not first, True, self.row is not None]
        found: tuple[Tensor, ...] = aten.convolution_backward(g[0], self.x, self.own, sizes, *self.how, wanted)
        for parameter, gradient in zip((self.weight, self.bias), found[1:], strict=True):
            if parameter is not None:
                assert parameter.grad is not None
                parameter.grad[0].copy_(gradient)
        return g if first else found[0][None]


class BatchNorm:
    """`nn.BatchNorm1d`: S networks of h features are one of S h features, (b, S h).

    Where h features fill no whole vectors of the CPU, networks are normalised one by one, as the kernel rounds what is
    left in another way.

    Args:
        module: of one of the networks, for its options.
        tensors: the module's parameters and buffers by name, (S, h) each; the counter (S,).
    """

    name = ""

    def __init__(self, module: nn.BatchNorm1d, tensors: Mapping[str, Tensor]) -> None:
        assert module.momentum is not None
        self.momentum, self.eps = module.momentum, module.eps
        self.weight, self.bias = tensors["weight"], tensors["bias"]
        self.counter = tensors["num_batches_tracked"]
        own = [tensors[name].detach() for name in ("weight", "bias", "running_mean", "running_var")]
        apart = not fills_vectors(self.weight)
        self.parts = list(zip(*own, strict=True)) if apart else [tuple(tensor.view(-1) for tensor in own)]

    def forward(self, x: Tensor, training: bool) -> Tensor:
        if training:
            self.counter += 1
        self.x, self.saved, outputs = self._flat(x), [], []
        for part, (w, b, mean, var) in zip(self.x, self.parts, strict=True):
            y, *saved = torch.native_batch_norm(part, w, b, mean, var, training, self.momentum, self.eps)
            outputs.append(y)
            self.saved.append(saved)
        return self._unflat(outputs, x)

    def backward(self, g: Tensor, first: bool) -> Tensor:
        found = [
            aten.native_batch_norm_backward(part, x, w, mean, var, *saved, True, self.eps, [True, True, True])
            for part, x, (w, _, mean, var), saved in zip(self._flat(g), self.x, self.parts, self.saved, strict=True)
        ]
        for parameter, several in ((self.weight, [by_w for _, by_w, _ in found]), (self.bias, [x[2] for x in found])):
            assert parameter.grad is not None
            parameter.grad.copy_(torch.cat(several).view_as(parameter))
        return self._unflat([by_x for by_x, _, _ in found], g)

    def _flat(self, x: Tensor) -> list[Tensor]:
        """(S, b, h) as one (b, S h), or as S times (b, h)."""
        return list(x) if len(self.parts) > 1 else [x.transpose(0, 1).flatten(1)]

    def _unflat(self, parts: list[Tensor], like: Tensor) -> Tensor:
        S, b, h = like.shape
        return torch.stack(parts) if len(parts) > 1 else parts[0].view(b, S, h).transpose(0, 1)


class Activation:
    """A function of each number alone.

    Args:
        forward: x -> y.
        backward: (g, x, y) -> the gradient by x.

    Attributes:
        in_place: whether x and g may be overwritten; only of a rectifier, which needs no more than y.
    """

    name = ""
    in_place = False

    def __init__(
        self, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> None:
        self._forward, self._backward = forward, backward

    def forward(self, x: Tensor, training: bool) -> Tensor:
        if self.in_place and training:
            self.y = torch.relu_(x)
            return self.y
        self.x, self.y = x, self._forward(x)
        return self.y

    def backward(self, g: Tensor, first: bool) -> Tensor:
        if self.in_place:
            return aten.threshold_backward.grad_input(g, self.y, 0, grad_input=g)  # type: ignore[no-any-return]
        return self._backward(g, self.x, self.y)


def activation(module: nn.Module) -> Activation | None:
    """The activation that a module is, if it is one that is known here."""
    if isinstance(module, nn.ReLU):
        return Activation(torch.relu, lambda g, x, y: aten.threshold_backward(g, y, 0))
    if isinstance(module, nn.LeakyReLU):
        slope = module.negative_slope
        return Activation(
            lambda x: aten.leaky_relu(x, slope), lambda g, x, y: aten.leaky_relu_backward(g, x, slope, False)
        )
    if isinstance(module, nn.Tanh):
        return Activation(torch.tanh, lambda g, x, y: aten.tanh_backward(g, y))
    if isinstance(module, nn.Sigmoid):
        return Activation(torch.sigmoid, lambda g, x, y: aten.sigmoid_backward(g, y))
    return None


class _Tracer(fx.Tracer):
    """Looks into all modules but those that `stacked` knows."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, ToFloat) or super().is_leaf_module(m, module_qualified_name)


def layers_of(model: nn.Module, weights: Mapping[str, Tensor]) -> list[Layer] | None:
    """The stacked layers of a perceptron: modules one after the other, each reading the one before it.

    Args:
        model: one of the networks.
        weights: the stacked parameters and buffers of all of them, by name.

    Returns:
        None if the network is something else.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception:  # its forward depends on numbers, or looks at its input in another way
        return None
    layers: list[Layer] = []
    before: fx.Node | None = None
    for node in graph.nodes:
        if (
            node.op not in ("placeholder", "call_module", "output")
            or (before and node.args != (before,))
            or node.kwargs
        ):
            return None
        if node.op == "call_module":
            name = str(node.target)
            layer = stacked(model.get_submodule(name), name, weights)
            if layer is None:
                return None
            layer.name = name
            layers.append(layer)
        before = node
    for below, layer, above in zip(layers, layers[1:], layers[2:], strict=False):
        if isinstance(layer, Activation) and isinstance(below, Linear) and isinstance(above, Linear):
            layer.in_place = isinstance(model.get_submodule(layer.name), nn.ReLU)
    return layers


def stacked(module: nn.Module, name: str, weights: Mapping[str, Tensor]) -> Layer | None:
    """One module of all networks; None if there is no such layer here."""
    own = {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
    if type(module) is nn.Flatten and module.start_dim > 0:
        return Flatten(module.start_dim, module.end_dim)
    if type(module) is ToFloat:
        return Activation(lambda x: x.float(), lambda g, x, y: g)
    if type(module) is nn.Conv2d and len(own["weight"]) == 1 and (module.padding_mode, type(module.padding)) == PLAIN:
        return Convolution(module, own["weight"], own.get("bias"))
    if type(module) is nn.Linear:
        return Linear(own["weight"], own.get("bias"))
    if type(module) is nn.BatchNorm1d and len(own) == 5 and module.momentum is not None:
        return BatchNorm(module, own)
    return activation(module)
