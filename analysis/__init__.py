"""Runs' results: tables, figures and a report, beside the paper's numbers."""
