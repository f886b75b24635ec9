"""Hidden units: find them in a network (graph, trace), measure their activations (watch), recycle them (recycle)."""
