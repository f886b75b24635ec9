"""Search the options of methods, in the same way for all methods and programs."""
