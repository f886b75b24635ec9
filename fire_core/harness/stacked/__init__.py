"""Networks of several seeds as one batched network, with one optimizer: what the trainers' `stack=` share."""
