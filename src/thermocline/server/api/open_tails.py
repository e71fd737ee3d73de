"""How many live tails are open, for each tenant and in all.

In:   tenants
Out:  `Overloaded` past a limit
"""

from dataclasses import dataclass, field

from thermocline.errors import Overloaded

TAILS_OF_TENANT_MAX = 8
TAILS_MAX = 64


@dataclass(slots=True)
class OpenTails:
    """How many tails are open, by tenant. Used on the event loop's thread only."""

    by_tenant: dict[str, int] = field(default_factory=dict)

    def enter(self, tenant: str) -> None:
        """Count a tail; `Overloaded` past a limit."""
        mine = self.by_tenant.get(tenant, 0)
        if mine >= TAILS_OF_TENANT_MAX or sum(self.by_tenant.values()) >= TAILS_MAX:
            raise Overloaded(
                "too many tails are open",
                hint="close one, or ask a query again and again",
                tails_max=TAILS_OF_TENANT_MAX,
            )
        self.by_tenant[tenant] = mine + 1

    def leave(self, tenant: str) -> None:
        """Count a tail that has ended."""
        self.by_tenant[tenant] -= 1
        if not self.by_tenant[tenant]:
            del self.by_tenant[tenant]
