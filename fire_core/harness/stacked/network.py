"""S networks of one architecture whose weights lie in common tensors (S, ...): trained as one, seen as S."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fire_core.harness.stacked.layers import Activation, Flatten, layers_of


class StackedNetworks:
    """Takes the weights of networks into common tensors; each network's own become views of them.

    So methods, measurements and checkpoints work on the single networks as ever, and a step is made for all at once.

    Args:
        models: networks of one architecture, without weights that two layers share.

    Attributes:
        models: the same.
        parameters: stacked, (S, ...), by name. Each has a `.grad` that stays the same tensor; those of the single
            networks' parameters are views of it.
        buffers: likewise, without gradients.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = list(models)
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, Tensor] = {}
        for name, _ in models[0].named_parameters():
            whole = nn.Parameter(torch.stack([model.get_parameter(name).detach() for model in models]))
            whole.grad = torch.zeros_like(whole)
            self.parameters[name] = whole
            for model, part, gradient in zip(models, whole.detach(), whole.grad, strict=True):
                parameter = nn.Parameter(part, requires_grad=model.get_parameter(name).requires_grad)
                parameter.grad = gradient
                put(model, name, parameter)
        for name, _ in models[0].named_buffers():
            self.buffers[name] = torch.stack([model.get_buffer(name) for model in models])
            for model, part in zip(models, self.buffers[name], strict=True):
                put(model, name, part)
        self.trace()

    def trace(self) -> None:
        """Find the layers, where the networks are perceptrons."""
        self.layers = layers_of(self.models[0], {**self.parameters, **self.buffers})
        # Below its first weights no one needs gradients.
        self.first = next((i for i, x in enumerate(self.layers or ()) if not isinstance(x, Flatten | Activation)), 0)
        self._outputs: Tensor | None = None
        self._watched: list[nn.Module] = []

    def watch(self, module: nn.Module | None) -> None:
        """From now on, run the hooks that this module and its layers have before their passes; None: no more.

        Args:
            module: with the names of one of the networks (`stacked_module`); perceptrons only.
        """
        layers = [] if module is None else [module.get_submodule(layer.name) for layer in self.layers or ()]
        parts = [] if module is None else [module, *layers]
        self._watched = parts if any(part._forward_pre_hooks for part in parts) else []

    @torch.no_grad()
    def forward(self, x: Tensor, training: bool = True) -> Tensor:
        """(S, b, ...) -> (S, b, outputs)."""
        if self.layers is None:
            return self._mapped(x, training)
        if self._watched and training:
            return self._seen(x)
        for layer in self.layers:
            x = layer.forward(x, training)
        return x

    def _seen(self, x: Tensor) -> Tensor:
        """A pass in training mode that is watched."""
        assert self.layers is not None
        run_hooks(self._watched[0], x)
        for layer, module in zip(self.layers, self._watched[1:], strict=True):
            run_hooks(module, x)
            x = layer.forward(x, training=True)
        return x

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> None:
        """Write the gradients of all weights, after a forward pass in training mode.

        Args:
            gradient: by the outputs, (S, b, outputs).
        """
        if self.layers is None:
            assert self._outputs is not None
            torch._foreach_zero_([p.grad for p in self.parameters.values() if p.grad is not None])
            self._outputs.backward(gradient)
            self._outputs = None
            return
        for number in range(len(self.layers) - 1, self.first - 1, -1):
            gradient = self.layers[number].backward(gradient, first=number == self.first)

    def _mapped(self, x: Tensor, training: bool) -> Tensor:
        """By `torch.vmap`: any network, at more cost for each call."""
        model = self.models[0]

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(model, (parameters, buffers), (x,))
            return outputs

        was = model.training
        model.train(training)
        with torch.set_grad_enabled(training):
            outputs: Tensor = torch.vmap(one, randomness="error")(dict(self.parameters), self.buffers, x)
        model.train(was)
        self._outputs = outputs if training else None
        return outputs.detach()


class View(StackedNetworks):
    """One network's own weights, seen as a stack of one."""

    def __init__(self, model: nn.Module) -> None:
        self.models = [model]
        self.parameters = {}
        for name, parameter in model.named_parameters():
            parameter.grad = torch.zeros_like(parameter)
            self.parameters[name] = nn.Parameter(parameter.detach()[None])
            self.parameters[name].grad = parameter.grad[None]
        self.buffers = {name: buffer[None] for name, buffer in model.named_buffers()}
        self.trace()


def run_hooks(module: nn.Module, x: Tensor) -> None:
    """Those before its pass."""
    for hook in module._forward_pre_hooks.values():
        hook(module, (x,))


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Make a tensor the network's parameter or buffer of this name."""
    path, _, own = name.rpartition(".")
    setattr(model.get_submodule(path), own, tensor)


def clip_gradients(gradients: Sequence[Tensor], limit: float | None) -> Tensor:
    """Scale each network's gradients as `clip_grad_norm_` does.

    Args:
        gradients: of each weight, (S, ...), in the optimizer's order, as norms are summed.
        limit: of the norm; None: they stay.

    Returns:
        The norms as they were, (S,).
    """
    S = len(gradients[0])
    if S == 1:
        norms = torch.stack(torch._foreach_norm(list(gradients)))[None]
    else:
        norms = torch.stack([torch.linalg.vector_norm(g.reshape(S, -1), dim=1) for g in gradients], dim=1)
    norm: Tensor = torch.linalg.vector_norm(norms, dim=1)
    if limit is not None:
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        if (factor < 1).any():  # a factor of 1 changes nothing
            for g in gradients:
                g.mul_(factor.view(S, *[1] * (g.ndim - 1)))
    return norm


def shares_weights(model: nn.Module) -> bool:
    """Whether two layers have one parameter or buffer in common."""
    everything = itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    found = [id(tensor) for _, tensor in everything]
    return len(set(found)) < len(found)
