"""What both agents share: phases, boundary, checkpoints, the replay on disk, memory."""
