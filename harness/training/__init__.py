"""The parts that all trainers share: boundaries, measurements, seeding, signals, console."""
