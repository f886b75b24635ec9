"""The methods, one file each, and the protocol between them and the trainers.

To add one: a class derived from `Method` in a file here (or anywhere importable), a yaml in `conf/method/` that names
it in `_target_`, and a test.
"""

from fire_core.methods.protocol import BoundaryReport, Context, Method, Net

__all__ = ["BoundaryReport", "Context", "Method", "Net"]
