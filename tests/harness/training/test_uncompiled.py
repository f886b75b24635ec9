"""A function that runs networks as plain modules."""

import torch

from harness.training.uncompiled import uncompiled


def passes_seen(network: torch.nn.Sequential) -> int:
    """How often a hook that is put on now is run by a pass."""
    seen = list[torch.nn.Module]()
    hook = network[0].register_forward_hook(lambda layer, inputs, output: seen.append(layer))
    network(torch.ones(2, 3))
    hook.remove()
    return len(seen)


def test_hooks_run_in_a_network_that_was_compiled_before_they_were_put_on() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    network.compile(backend="eager")
    network(torch.ones(2, 3))
    assert passes_seen(network) == 0, "else there is nothing to do here"
    assert uncompiled(passes_seen)(network) == 1
    assert passes_seen(network) == 0, "afterwards it is compiled as before"
