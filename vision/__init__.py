"""Image classification on streams of tasks: warm starts, class-incremental data, changed pixels and labels."""
