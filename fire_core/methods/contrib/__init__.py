"""Rivals since 2023 that the figures of the FIRE paper lack, one file each."""
