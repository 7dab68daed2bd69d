"""Objects with methods that extras bring: a file of their group names a function, which gets the object first."""

from types import MethodType
from typing import Any, ClassVar

from kvbench.support.named import member, named


class Extended:
    """An object that has the members of a group as methods, beside its own."""

    group: ClassVar[str]

    def __getattr__(self, name: str) -> Any:
        found = None if name.startswith("_") else member(self.group, name)
        if found is None:
            problem = f"{type(self).__name__} has no {name}, and no extra that is installed brings it"
            raise AttributeError(problem, name=name, obj=self)
        return MethodType(found.load(), self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *named(self.group)})
