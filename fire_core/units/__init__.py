"""Hidden units: which there are, what they do, how to recycle them."""
