"""Muon for any model: which weights it trains, an optimizer for fused weights, and a check of any Muon's groups."""
