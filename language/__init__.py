"""Language models: prepare corpora, train a GPT on one corpus after another, write text with it."""
