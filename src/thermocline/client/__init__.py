"""A client of a lake over HTTP, with the interface of an embedded lake.

lake = Client("http://127.0.0.1:4320", api_key="tck_...")
lake.table("prices").write([{"ts": "2024-06-01T00:00:00", "symbol": "NVDA", "close": 1.0}])
lake.sql("select count(*) from prices")
"""

from thermocline.client.lake import Client
from thermocline.client.table import ClientTable

__all__ = ["Client", "ClientTable"]
