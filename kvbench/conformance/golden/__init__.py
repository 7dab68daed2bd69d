"""Golden cases: complete eviction problems with the numbers they must produce, through the same `Eviction` as a run.

A case is one `.npz` file: a policy as data (`spec`), queries, keys and values after RoPE, and the expected scores, head
lengths and kept positions. What kvbench cannot do or does not know of a case is a reason to fail, never one to skip.
"""

from kvbench.conformance.golden.case import Case, load
from kvbench.conformance.golden.compare import Verdict, check
from kvbench.conformance.golden.spec import MakeScore, cache_of, eviction_of

__all__ = ["Case", "MakeScore", "Verdict", "cache_of", "check", "eviction_of", "load"]
