"""Golden cases: complete eviction problems with the numbers they must produce, through the same `Eviction` as a run.

A case is one `.npz` file: a policy as data (`spec`), queries, keys and values after RoPE, and the expected scores, head
lengths and kept positions. A field that kvbench does not know or support is a failure, never a reason to skip.
"""

from kvbench.extras.conformance.golden.case import Case, load
from kvbench.extras.conformance.golden.compare import check
from kvbench.extras.conformance.golden.verdict import Verdict

__all__ = ["Case", "Verdict", "check", "load"]
