"""What both agents share: replay on disk, memory, boundary, evaluation."""
