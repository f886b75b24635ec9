"""What methods return in a reading: of modules, of lists and mappings, of `super()`, and of objects that code makes."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fire_core.weights.flows import (
    BoundMethod,
    FunctionContext,
    Instance,
    Rest,
    Shape,
    Size,
    Super,
    Unknown,
    Weight,
    copied_containers,
)
from fire_core.weights.syntax_trees import file_of, function_of_class, is_torchs, method_of, outer_names, source_of
from fire_core.weights.topology import is_layer, words

if TYPE_CHECKING:
    import ast

    from fire_core.weights.function_reading import FunctionReading

LOOK_UP = words(
    "children named_children modules named_modules parameters named_parameters buffers named_buffers "
    "get_submodule get_parameter"
)


def is_distribution(kind: Any) -> bool:
    """Return whether a value is a class of torch's distributions."""
    return isinstance(kind, type) and kind.__module__.startswith("torch.distributions.")


class MethodCalls:
    """The calls of methods in one function that is read.

    Args:
        reading: the reading of that function.
    """

    def __init__(self, reading: FunctionReading) -> None:
        self.reading, self.reader = reading, reading.reader

    def call(self, method: BoundMethod, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return what a method returns, by what it belongs to."""
        owner, name = method.instance, method.name
        if isinstance(owner, Super):
            return self._call_super(owner, name, args, kwargs)
        if isinstance(owner, nn.Module):
            return self._call_method_of_module(owner, name, args, kwargs, node)
        if isinstance(owner, Instance) and is_distribution(owner.kind):  # a sample, a mode or a probability
            first = next(iter(owner.attributes.values()))
            return self.reading.call_torch(name, [first, *args], kwargs, node)
        if isinstance(owner, Instance):
            return self._call_on_instance(owner, *function_of_class(owner.kind, name), args, kwargs)
        if isinstance(owner, list):
            return self._call_method_of_list(owner, name, args)
        if isinstance(owner, dict):
            if name in ("items", "values", "keys"):
                return list(getattr(owner, name)())
            return self._call_method_of_mapping(owner, name, args, kwargs)
        if isinstance(owner, (Shape, tuple)):
            return Size()
        self.reading.weights.record_write(name, [owner, *args], kwargs, node)
        return self.reading.call_torch(name.strip("_") or name, [owner, *args], kwargs, node)

    def instance_of(self, kind: type, args: list[Any], kwargs: dict[str, Any]) -> Instance | None:
        """Return the object that a call of a class makes; None if its constructor cannot be read."""
        function, owner = function_of_class(kind, "__init__")
        if issubclass(kind, (nn.Module, Tensor, BaseException)) or not inspect.isfunction(function):
            return None
        if is_torchs(function) or source_of(function) is None:
            return None
        made = Instance(kind)
        self._call_on_instance(made, function, owner, args, kwargs)
        return made

    def distribution_of(self, kind: type, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Instance:
        """Return a distribution of torch, which holds what it was made of: a policy may return it as it is."""
        arguments = [*args, *kwargs.values()]
        for slot, value in enumerate(arguments):
            self.reader.meet(value, "distribution", kind.__name__, slot)
        if isinstance(arguments[0], Instance):  # `Independent` wraps another one, a mixture two
            wrapped = [value for value in arguments if isinstance(value, Instance)]
            held = [
                (f"{name} {i or ''}".strip(), value)
                for i, d in enumerate(wrapped)
                for name, value in d.attributes.items()
            ]
            return Instance(kind, dict(held))
        names = dict(zip(("mean", "stddev"), arguments, strict=False))
        return Instance(kind, {**names, **kwargs})

    def attribute_of_instance(self, owner: Instance, name: str) -> Any:
        """Return an attribute of an object that the code has made: what it holds, a property's value or a method."""
        if name in owner.attributes:
            return owner.attributes[name]
        value, where = function_of_class(owner.kind, name)
        if isinstance(value, property):
            return self._call_on_instance(owner, value.fget, where, [], {})
        if isinstance(value, staticmethod):
            return value.__func__
        if value is None or inspect.isfunction(value):
            return BoundMethod(owner, name)
        return copied_containers(value)

    def _call_on_instance(
        self, owner: Instance, function: Any, where: type | None, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Return what a method of an object that the code has made returns.

        Args:
            owner: the object.
            function: the method.
            where: the class that defines it.
            args: its arguments.
            kwargs: those by name.
        """
        source = source_of(function) if inspect.isfunction(function) and not is_torchs(function) else None
        if source is None:
            self.reader.escape([owner, *args, *kwargs.values()], "call", getattr(function, "__name__", ""))
            return Unknown()
        context = FunctionContext(file_of(function), where, owner)
        return self.reader.call_function(source, outer_names(function), [owner, *args], kwargs, context)

    def _call_method_of_list(self, owner: list[Any], name: str, args: list[Any]) -> Any:
        """Do to a list what its method does, and return the method's value.

        An item whose index is not known is inserted at the front; one to pop is taken from the end.
        """
        if name == "append" and args:
            owner.append(args[0])
        elif name == "extend" and args:
            owner += self.reading.items_of(args[0]) or [Rest()]
        elif name == "insert" and len(args) > 1:
            owner.insert(args[0] if isinstance(args[0], int) else 0, args[1])
        elif name == "pop" and owner:
            is_known = args and isinstance(args[0], int) and -len(owner) <= args[0] < len(owner)
            return owner.pop(args[0] if is_known else -1)
        elif name == "copy":
            return list(owner)
        elif name not in ("append", "extend", "insert", "pop", "clear", "reverse", "index", "count"):
            self.reader.escape([owner, *args], "call", name)
        return Unknown()

    def _call_method_of_mapping(self, owner: dict[Any, Any], name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Do to a mapping what its method does, and return the method's value."""
        has_key = bool(args) and isinstance(args[0], (str, int))
        if name in ("get", "pop") and has_key:
            return owner.get(args[0], args[1] if len(args) > 1 else Unknown())
        if name == "setdefault" and has_key:
            return owner.setdefault(args[0], args[1] if len(args) > 1 else None)
        if name == "update" and all(isinstance(arg, dict) for arg in args):
            owner.update({**(args[0] if args else {}), **kwargs})
            return None
        if name == "copy":
            return dict(owner)
        if name != "clear":
            self.reader.escape([owner, *args, *kwargs.values()], "call", name)
        return Unknown()

    def _call_super(self, value: Super, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what a method that was found by `super()` returns."""
        instance = value.instance
        if isinstance(instance, Instance):
            function, where = function_of_class(instance.kind, name, after=value.after)
            is_objects = where in (None, object)
            return Unknown() if is_objects else self._call_on_instance(instance, function, where, args, kwargs)
        function, where = method_of(instance, name, after=value.after)
        if function is None:
            return Unknown()
        if is_torchs(function):
            return self._call_torch_forward(instance, args, kwargs) if name in ("forward", "__call__") else Unknown()
        source = source_of(function)
        if source is None:
            self.reader.escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        context = FunctionContext(file_of(function), where, instance)
        return self.reader.call_function(source, outer_names(function), [instance, *args], kwargs, context)

    def _call_torch_forward(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what torch's own forward pass returns within that of a subclass; it uses the weights as always."""
        for parameter in module._parameters.values():
            if parameter is not None:
                use = self.reader.use_of(id(parameter))
                use.calls, use.multiplied, use.fused_by_torch = use.calls + 1, use.multiplied + 1, True
        self.reader.meet([*args, *kwargs.values()], "layer", id(module))
        if is_layer(module) and (weight := module._parameters.get("weight")) is not None:
            return self.reader.output_of(id(weight), module, args[0] if args else None)
        returns_pair = isinstance(module, (nn.MultiheadAttention, nn.LSTMCell, nn.RNNBase))
        return (Unknown(), Unknown()) if returns_pair else Unknown()

    def _call_method_of_module(
        self, module: nn.Module, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST
    ) -> Any:
        """Return what a module's method returns: its forward pass, its children, or its own code's value."""
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and is_torchs(type(module))
        if is_list and name in ("items", "values", "keys"):
            return list(getattr(module._modules, name)())
        if name in ("forward", "__call__"):
            return self.reader.call_module(module, args, kwargs, node)
        if name in LOOK_UP and is_torchs(method_of(module, name)[0]):
            return self._look_up(module, name, args)
        function, where = method_of(module, name)
        inside: list[Any] = [module]
        if isinstance(function, classmethod):
            function, inside = function.__func__, [type(module)]
        if function is None or is_torchs(function):
            self.reader.escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        if not inspect.isfunction(inspect.unwrap(function)) or (source := source_of(function)) is None:
            self.reader.escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        context = FunctionContext(file_of(function), where, module)
        return self.reader.call_function(source, outer_names(function), [*inside, *args], kwargs, context)

    def _look_up(self, module: nn.Module, name: str, args: list[Any]) -> Any:
        """Return what torch's own methods find in a module: its parts, its parameters, or one of them by its name."""
        if name.startswith("get_"):
            path = args[0].split(".") if args and isinstance(args[0], str) else None
            return (
                Unknown() if path is None else functools.reduce(self.reading.attribute_of, filter(None, path), module)
            )
        found = list(getattr(module, name)())
        if name == "buffers":
            return [Unknown(is_constant=True) for _ in found]
        if name == "named_buffers":
            return [(key, Unknown(is_constant=True)) for key, _ in found]
        if "parameters" not in name:
            return found
        values = [value[1] if name.startswith("named_") else value for value in found]
        weights = [Weight(id(value)) if value.ndim > 1 else Unknown() for value in values]
        return [(pair[0], weight) for pair, weight in zip(found, weights, strict=True)] if "named_" in name else weights
