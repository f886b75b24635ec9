"""The parts that all trainers share: learner, loop, boundaries, measurements, seeding and the estimate of time."""
