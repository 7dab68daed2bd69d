"""Pictures of rows, curves and kept sets: one module a kind, each with ``SETTINGS`` and ``draw``. No torch."""
