"""What trainers share: boundaries, measurements, seeding, signals, console."""
