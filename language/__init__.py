"""Language models: data preparation, training of a GPT on one corpus after another, and sampling."""
