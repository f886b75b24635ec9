"""The weights of a model as matrices, and what belongs to them: optimizer state, shards, the way back after an error.

How a model is read into matrices:
    `layout` is asked by acts, and asks `reader`, which describes each parameter by one or several entries (`entry`).
    `topology` says what a parameter is for, by its place in the model; `adapters` looks through LoRA and the like.
    `known` has rules for the fused weights of well-known models.
    `forward_pass` watches one pass: which rows of a weight belong to one matrix. `outside` puts back what it changes.
    `source` reads the source of forward passes: what becomes of each layer's output (its docstring names its parts).
    `own_forward` runs a copy of a layer with a forward pass of its own; `output_layers` finds what gives the output.
    `matrices` lists all of this for users.

What optimizers hold:
    `optimizer_state` resets it. `optimizers` finds them in what users have; `new_optimizer`, `as_new`, `renewal` and
    `freshness` know what a new one holds. `masters` keeps float32 copies of half-precision weights in step.

Besides: `distributed` and `exchange` (replicas and shards), `overlap` (memory that tensors share), `undo` (after an
error), `generators` and `nested`.
"""
